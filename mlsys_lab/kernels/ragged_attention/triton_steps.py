"""Attention for a ragged batch in Triton over a paged cache, in one step.

    packed  a program takes a tile of queries of one sequence and key/value head, and all keys that they see

q is (Q, N, D), the new tokens of all sequences side by side; caches are (pages, page size, K, D); table (B, longest in
pages), lengths (B,) and starts (B + 1,) are integers. Sums are float32. A long sequence with a single query keeps one
program busy for each of its heads: `decode_attention` shares such keys among programs.
"""

from __future__ import annotations

import math

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import tiles
from mlsys_lab.kernels.arguments import check_rank, check_shared_memory, check_step, check_tensors
from mlsys_lab.kernels.decode_attention.arguments import check_cache, check_pages, check_table
from mlsys_lab.kernels.ragged_attention.arguments import check_queries, check_starts, check_window
from mlsys_lab.kernels.ragged_attention.triton_kernels import packed_kernel
from mlsys_lab.kernels.row_blocks import power_of_two
from mlsys_lab.kernels.triton_launch import launch
from mlsys_lab.validation import require_positive_number, require_power_of_two

STEPS = {"packed": "a program takes a few queries of one sequence and key/value head"}
WIDEST = 256
"""Widest head whose tiles fit a block's shared memory."""

FEWEST_ROWS, MOST_ROWS = 16, 64
"""Rows of a tile, queries times heads of a group: the fewest that tensor cores take, and those of a chunk's tile."""

STAGES, TILE_BYTES = 3, 16 * 1024
"""Tiles of keys and of values in flight at once, and the bytes of one."""


def ragged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    starts: torch.Tensor,
    *,
    window: int | None = None,
    scale: float | None = None,
    step: str = "packed",
    precision: str = "ieee",
    queries: int | None = None,
    block_n: int | None = None,
) -> torch.Tensor:
    """Attend with the last tokens of each sequence over its first `lengths` cached ones, causally: (Q, N, D) -> same.

    `queries` of a sequence make a tile, whose keys are worked on `block_n` at once; both are chosen by size where they
    are not given. Raises InputError; on the CPU also for lengths, starts and pages that cannot be, which a GPU would
    have to be waited for to see. Other arguments as those of `mlsys_lab.kernels.ragged_attention.ragged_attention`.
    """
    _check(q, k_cache, v_cache, table, lengths, starts, step, precision)
    check_window(window)
    (Q, N, D), (_, page, K, _), B = q.shape, k_cache.shape, len(lengths)
    scale = 1 / math.sqrt(D) if scale is None else float(scale)
    require_positive_number("scale of attention", scale)
    width = max(16, power_of_two(D))
    if queries is None:
        queries = max(1, (FEWEST_ROWS if Q <= B else MOST_ROWS) // (N // K))
    elif queries < 1:
        raise InputError("queries of a tile", got=queries, expected="1 or more")
    block_n = max(16, min(128, TILE_BYTES // (width * q.itemsize))) if block_n is None else block_n
    require_power_of_two("keys of a tile", block_n, at_least=16)
    rows = max(FEWEST_ROWS, power_of_two(queries * (N // K)))
    tile_bytes = (rows + 2 * STAGES * block_n) * width * q.itemsize
    check_shared_memory(tile_bytes, f"a tile of {rows} rows and {block_n} keys", tiles.limits(q.device).shared_bytes)
    if q.device.type == "cpu":
        check_pages(k_cache, table, lengths)
        check_queries(q, lengths, starts)
    out = q.new_empty(q.shape)
    if not q.numel():
        return out
    strides = (*q.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3], table.stride(0))
    launch(
        packed_kernel,
        (Q // queries + B, K),
        q.device,
        *(q, k_cache, v_cache, table, lengths, starts, out, *strides, B, scale),
        outputs=("out_ptr",),
        **{"GROUP": N // K, "QUERIES": queries, "ROWS": rows, "SEQUENCES": power_of_two(B), "WINDOW": window or 0},
        **{"D": D, "BLOCK_D": width, "PAGE": page, "BLOCK_N": block_n, "PRECISION": precision},
        **{"num_warps": 4, "num_stages": STAGES},
    )
    return out


def _check(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    starts: torch.Tensor,
    step: str,
    precision: str,
) -> None:
    check_step(step, STEPS)
    tiles.check_precision(precision)
    check_tensors(tiles.DTYPES, q=q)
    check_rank(3, q=q)
    tiles.check_operands(4, q=q[:, None], k_cache=k_cache, v_cache=v_cache)
    check_cache(q, k_cache, v_cache)
    check_starts(q, starts)
    check_table(q, table, lengths, len(starts) - 1)
    if q.shape[-1] > WIDEST:
        raise InputError("width of heads", got=q.shape[-1], expected=f"at most {WIDEST}")
