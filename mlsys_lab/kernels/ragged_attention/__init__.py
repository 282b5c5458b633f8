"""Paged attention for a ragged batch: any number of query tokens per sequence, KV cache in blocks, inference only.

Chunks of prompts, draft tokens to verify and single decode tokens share one batch.

    reference  torch, sequence by sequence
    padded     torch, one call for all sequences, padded to the longest
    packed     Triton, no padding: a program takes a few queries of one sequence for all heads that share a KV head
    compiled   Numba on a CPU, no padding: a query reads its blocks in place, except in long chunks of a prompt

Sums are in float32. In "packed", a long sequence with one query keeps one program busy for each of its KV heads;
`decode_attention` splits such a sequence among programs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import tiles
from mlsys_lab.kernels.arguments import check_integers, check_rank, check_shared_memory, check_step, check_tensors
from mlsys_lab.kernels.paged_cache import (
    NUM_STAGES,
    check_block_ids,
    check_kernel_operands,
    check_paged_cache,
    keys_per_tile,
)
from mlsys_lab.kernels.row_blocks import next_power_of_2
from mlsys_lab.kernels.triton_launch import launch

STEPS = {
    "reference": "torch: each sequence's cache blocks gathered, attention over them",
    "padded": "torch: one call for all sequences, padded to the longest",
    "packed": "Triton: a program takes a few queries of one sequence and KV head",
    "compiled": "Numba on a CPU: a query reads its sequence's blocks in place",
}

MIN_ROWS, MAX_ROWS = 16, 64
"""Rows of a tile (queries times heads of a group): the fewest that tensor cores take, and those of a prompt chunk."""


def ragged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    *,
    window: int | None = None,
    scale: float | None = None,
    step: str = "packed",
    precision: str = "ieee",
    queries: int | None = None,
    block_n: int | None = None,
) -> Tensor:
    """Causal attention of each sequence's last tokens over its first `seq_lens` cached ones: (Q, N, D) -> (Q, N, D).

    Sequence b of B has queries `query_start_loc`[b] to `query_start_loc`[b+1] - 1, at its last positions, whose keys
    are in the cache already. The caches are (num_blocks, block_size, K, D); `block_table` (B, max blocks) lists each
    sequence's blocks in order. Query head n attends with KV head n // (N/K). With a `window` a query sees itself and
    the `window` - 1 tokens before it. `scale` is 1/√D by default. "packed" takes tiles of `queries` queries of a
    sequence and `block_n` keys, chosen by size if not given. Raises InputError for tensors that do not match, an
    unknown step or precision, and, on the CPU or in a torch step, for lengths, starts and block ids out of range.
    """
    check_step(step, STEPS)
    if step == "packed":
        check_kernel_operands(q, k_cache, v_cache, precision)
    check_tensors(tiles.REFERENCE_DTYPES, q=q)
    check_integers(q, query_start_loc=query_start_loc)
    check_rank(1, query_start_loc=query_start_loc)
    B = len(query_start_loc) - 1
    if B < 0:
        raise InputError("query_start_loc", got="no elements", expected="B + 1 elements")
    check_paged_cache(q, k_cache, v_cache, block_table, seq_lens, B)
    if window is not None and window < 1:
        raise InputError("window of attention", got=window, expected="1 or more, or None for all previous tokens")
    if step != "packed" or q.device.type == "cpu":
        check_block_ids(k_cache, block_table, seq_lens)
        _check_queries(q, seq_lens, query_start_loc)
    batch = (q, k_cache, v_cache, block_table, seq_lens, query_start_loc)
    if step == "compiled":
        from mlsys_lab.kernels.ragged_attention.compiled import check_compiled, compiled

        check_compiled(q, k_cache, v_cache)
        return compiled(*batch, window=window, scale=scale)
    if step != "packed":
        return (reference if step == "reference" else padded)(*batch, window=window, scale=scale)
    scale, block_n = tiles.softmax_scale(q, scale), keys_per_tile(q, block_n)

    (Q, N, D), (_, block_size, K, _) = q.shape, k_cache.shape
    if queries is None:
        queries = max(1, (MIN_ROWS if Q <= B else MAX_ROWS) // (N // K))
    elif queries < 1:
        raise InputError("queries of a tile", got=queries, expected="1 or more")
    rows, head_dim = max(MIN_ROWS, next_power_of_2(queries * (N // K))), tiles.padded_head_dim(q)
    tile_bytes, limit = (rows + 2 * NUM_STAGES * block_n) * head_dim * q.itemsize, tiles.device_limits(q.device)
    check_shared_memory(tile_bytes, f"a tile of {rows} rows and {block_n} keys", limit.shared_bytes)
    out = q.new_empty(q.shape)
    if not q.numel():
        return out
    from mlsys_lab.kernels.ragged_attention.triton_kernels import packed_kernel

    launch(
        packed_kernel,
        (Q // queries + B, K),
        q.device,
        *(*batch, out, *q.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3], block_table.stride(0), B, scale),
        **{"GROUP": N // K, "QUERIES": queries, "ROWS": rows, "BLOCK_B": next_power_of_2(B), "WINDOW": window or 0},
        **{"D": D, "BLOCK_D": head_dim, "BLOCK_SIZE": block_size, "BLOCK_N": block_n, "PRECISION": precision},
        **{"num_warps": 4, "num_stages": NUM_STAGES},
        outputs=("out_ptr",),
    )
    return out


def reference(*batch: Tensor, window: int | None = None, scale: float | None = None) -> Tensor:
    """Attention of a ragged batch in torch, sequence by sequence; the tensors are those of `ragged_attention`."""
    q, k_cache, v_cache, block_table, seq_lens, query_start_loc = batch
    (_, N, D), (_, block_size, K, _), out = q.shape, k_cache.shape, torch.empty_like(q)
    starts, scale = query_start_loc.tolist(), 1 / math.sqrt(D) if scale is None else scale
    for blocks, length, first, end in zip(block_table, seq_lens.tolist(), starts, starts[1:], strict=False):
        used = blocks[: -(-length // block_size)].long()
        k, v = (  # (N, T, D)
            cache[used].flatten(0, 1)[:length].transpose(0, 1).repeat_interleave(N // K, 0)
            for cache in (k_cache, v_cache)
        )
        keys = torch.arange(length, device=q.device)
        queries = keys[length - (end - first) :, None]
        masked = keys > queries if window is None else (keys > queries) | (keys <= queries - window)
        scores = (q[first:end].transpose(0, 1) @ k.mT * scale).masked_fill(masked, -math.inf)  # (N, S, T)
        out[first:end] = (scores.softmax(-1) @ v).transpose(0, 1)
    return out


def padded(*batch: Tensor, window: int | None = None, scale: float | None = None) -> Tensor:
    """Attention of a ragged batch by one call to torch; the tensors are those of `ragged_attention`.

    Computes B·S·T scores, with S and T the most queries and tokens of any sequence; the padding's are thrown away.
    """
    q, k_cache, v_cache, block_table, seq_lens, query_start_loc = batch
    block_size, counts = k_cache.shape[1], query_start_loc.diff()
    if not q.numel():
        return torch.empty_like(q)
    keys = torch.arange(int(seq_lens.max()), device=q.device)
    block_ids = torch.where(keys < seq_lens[:, None], block_table[:, keys // block_size], 0).long()  # (B, T)
    k, v = (cache[block_ids, keys % block_size].transpose(1, 2) for cache in (k_cache, v_cache))  # (B, K, T, D)
    row = torch.repeat_interleave(torch.arange(len(seq_lens), device=q.device), counts.long())  # (Q,)
    column = torch.arange(len(q), device=q.device) - query_start_loc[row]
    rows = q.new_zeros(len(seq_lens), int(counts.max()), *q.shape[1:])  # (B, S, N, D)
    rows[row, column] = q
    positions = (seq_lens - counts)[:, None] + torch.arange(rows.shape[1], device=q.device)  # (B, S)
    mask = keys <= positions[..., None]  # (B, S, T)
    if window is not None:
        mask &= keys > positions[..., None] - window
    heads = F.scaled_dot_product_attention(
        rows.transpose(1, 2), k, v, attn_mask=mask[:, None], scale=scale, enable_gqa=k.shape[1] != q.shape[1]
    )  # (B, N, S, D)
    return heads.transpose(1, 2)[row, column]


def _check_queries(q: Tensor, seq_lens: Tensor, query_start_loc: Tensor) -> None:
    """Raise InputError unless `query_start_loc` cuts all queries into at most `seq_lens` each; waits for a GPU."""
    counts, starts = query_start_loc.diff(), query_start_loc.tolist()
    if starts[0] != 0 or starts[-1] != len(q) or bool((counts < 0).any()):
        raise InputError("query_start_loc", got=starts, expected=f"rising from 0 to {len(q)}")
    if bool((counts > seq_lens).any()):
        got = f"{counts.tolist()} of {seq_lens.tolist()}"
        raise InputError("more queries than tokens", got=got, expected="seq_lens that include the new tokens")
