"""Arguments shared by the paged attention kernels: a KV cache in blocks, block tables and sequence lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import tiles
from mlsys_lab.kernels.arguments import check_integers, check_rank, check_shape, check_tensors
from mlsys_lab.validation import require_grouped_heads, require_power_of_two

NUM_STAGES, TILE_BYTES = 3, 16 * 1024
"""Tiles of keys and of values in flight at once, and the bytes of one."""


def check_paged_cache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, num_seqs: int | None = None
) -> None:
    """Check the shapes and integer dtypes of paged attention's tensors.

    q is (any, N, D), both caches (num_blocks, block_size, K, D), `block_table` (num_seqs, any), `seq_lens` (num_seqs,),
    with N a multiple of K; `num_seqs` is len(q) by default. Raises InputError naming the first that does not fit.
    """
    check_tensors(tiles.REFERENCE_DTYPES, q=q, k_cache=k_cache, v_cache=v_cache)
    check_rank(3, q=q)
    check_rank(4, k_cache=k_cache)
    check_shape(tuple(k_cache.shape), v_cache=v_cache)
    (_, N, D), (_, block_size, K, cache_dim) = q.shape, k_cache.shape
    if cache_dim != D or not D:
        raise InputError("head dimension", got=f"{D} and {cache_dim}", expected="the same, 1 or more")
    require_grouped_heads(N, K)
    if not block_size:
        raise InputError("tokens of a cache block", got=block_size, expected="1 or more")
    num_seqs = len(q) if num_seqs is None else num_seqs
    check_integers(q, block_table=block_table, seq_lens=seq_lens)
    check_rank(2, block_table=block_table)
    check_shape((num_seqs, block_table.shape[1]), block_table=block_table)
    check_shape((num_seqs,), seq_lens=seq_lens)


def check_kernel_operands(q: Tensor, k_cache: Tensor, v_cache: Tensor, precision: str) -> None:
    """Raise InputError for dtypes, strides, a head dimension or a precision that the Triton kernels do not take."""
    tiles.check_precision(precision)
    check_tensors(tiles.DTYPES, q=q)
    check_rank(3, q=q)
    tiles.check_operands(4, q=q[:, None], k_cache=k_cache, v_cache=v_cache)
    tiles.check_head_dim(q)


def check_block_ids(k_cache: Tensor, block_table: Tensor, seq_lens: Tensor) -> None:
    """Raise InputError for lengths beyond the table and block ids beyond the cache; waits for a GPU."""
    num_blocks, block_size = k_cache.shape[:2]
    capacity = block_table.shape[1] * block_size
    if not bool(((seq_lens >= 0) & (seq_lens <= capacity)).all()):
        raise InputError("seq_lens", got=seq_lens.tolist(), expected=f"0 to {capacity}, the capacity of block_table")
    first_tokens = torch.arange(block_table.shape[1], device=block_table.device) * block_size
    used = block_table[first_tokens < seq_lens[:, None]]
    if used.numel() and not 0 <= int(used.min()) <= int(used.max()) < num_blocks:
        got = f"{int(used.min())} to {int(used.max())}"
        raise InputError("block ids in block_table", got=got, expected=f"0 to {num_blocks - 1}")


def keys_per_tile(q: Tensor, block_n: int | None) -> int:
    """Keys of a tile, by default those of `TILE_BYTES`. Raises InputError unless a power of two, at least 16."""
    if block_n is None:
        return max(16, min(128, TILE_BYTES // (tiles.padded_head_dim(q) * q.itemsize)))
    require_power_of_two("keys of a tile", block_n, at_least=16)
    return block_n
