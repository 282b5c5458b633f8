"""Decode attention in Triton: one new query a sequence over keys and values that lie in pages of a cache.

Letters: B sequences, N query heads, K key/value heads, GROUP = N/K, D width of a head. A cache is (pages, PAGE, K, D);
the table (B, pages of the longest) says in which page each PAGE tokens of a sequence lie.

A program reads the keys of one key/value head for the queries of its whole group, so that each is read once; the
group's queries are the rows of a tile, few as they are. Long sequences are shared among programs, each with a softmax
of its own, and a second kernel merges them (flash-decoding, Dao et al. 2023; pages as in vLLM, arXiv:2309.06180).
"""

from __future__ import annotations

from mlsys_lab.kernels.tiles import dot
from mlsys_lab.kernels.triton_language import tl, triton

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def load_tokens(cache_ptr, pages, keys, inside, page, slot, D: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr):
    """Load rows of one head from a paged cache for some keys: (BLOCK_N, BLOCK_D). `page` and `slot` are strides."""
    column = tl.arange(0, BLOCK_D)[None, :]
    at = pages.to(tl.int64) * page + keys % PAGE * slot
    return tl.load(cache_ptr + at[:, None] + column, mask=inside[:, None] & (column < D), other=0.0)


@triton.jit
def part_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, part_ptr, lse_ptr,
    q_b, q_h, k_page, k_slot, k_h, v_page, v_slot, v_h, table_b, scale,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend over one part of a sequence's keys for one key/value head's group; writes output and log-sum-exp."""
    b, h, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    parts = tl.num_programs(2)
    length = tl.load(lengths_ptr + b).to(tl.int32)
    share = tl.cdiv(tl.cdiv(length, parts), BLOCK_N) * BLOCK_N
    begin, end = part * share, min(length, (part + 1) * share)

    row, column = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    head = h * GROUP + row
    q_ptrs = q_ptr + b.to(tl.int64) * q_b + head[:, None] * q_h + column[None, :]
    q = tl.load(q_ptrs, mask=(row < GROUP)[:, None] & (column < D)[None, :], other=0.0)
    k_ptr += h * k_h
    v_ptr += h * v_h
    accumulator = tl.zeros((ROWS, BLOCK_D), tl.float32)
    row_sum = tl.zeros((ROWS,), tl.float32)
    row_max = tl.full((ROWS,), -float("inf"), tl.float32)
    for n in range(begin, end, BLOCK_N):
        keys = n + tl.arange(0, BLOCK_N)
        inside = keys < end
        pages = tl.load(table_ptr + b.to(tl.int64) * table_b + keys // PAGE, mask=inside, other=0)
        k = load_tokens(k_ptr, pages, keys, inside, k_page, k_slot, D, BLOCK_D, PAGE)
        scores = dot(q, k.T, None, PRECISION) * (scale * LOG2_E)
        scores = tl.where(inside[None, :], scores, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        p = tl.exp2(scores - new_max[:, None])
        shrink = tl.exp2(row_max - new_max)
        row_sum = row_sum * shrink + tl.sum(p, 1)
        v = load_tokens(v_ptr, pages, keys, inside, v_page, v_slot, D, BLOCK_D, PAGE)
        accumulator = dot(p.to(v.dtype), v, accumulator * shrink[:, None], PRECISION)
        row_max = new_max

    at = (b.to(tl.int64) * tl.num_programs(1) * GROUP + head) * parts + part  # parts are (B, N, parts, D)
    out = accumulator / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    kept = (row < GROUP)[:, None] & (column < D)[None, :]
    tl.store(part_ptr + at[:, None] * D + column[None, :], out.to(part_ptr.dtype.element_ty), mask=kept)
    tl.store(lse_ptr + at, (row_max + tl.log2(row_sum)) * LN_2, mask=row < GROUP)


@triton.jit
def merge_kernel(
    part_ptr, part_lse_ptr, out_ptr, lse_ptr, parts,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_PARTS: tl.constexpr,
):  # fmt: skip
    """Merge the parts' outputs of one query, each weighted by its share of the softmax's sum."""
    query, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_D)
    accumulator = tl.zeros((BLOCK_D,), tl.float32)
    total, highest = 0.0, -float("inf")
    for first in range(0, parts, BLOCK_PARTS):
        part = first + tl.arange(0, BLOCK_PARTS)
        part_lse = tl.load(part_lse_ptr + query * parts + part, mask=part < parts, other=-float("inf"))
        new = tl.maximum(highest, tl.max(part_lse, 0))
        anchor = tl.where(new == -float("inf"), 0.0, new)  # parts without keys weigh nothing
        weights, shrink = tl.exp(part_lse - anchor), tl.exp(highest - anchor)
        ptrs = part_ptr + (query * parts + part)[:, None] * D + column[None, :]
        outs = tl.load(ptrs, mask=(weights > 0.0)[:, None] & (column < D)[None, :], other=0.0)
        accumulator = accumulator * shrink + tl.sum(outs * weights[:, None], 0)
        total, highest = total * shrink + tl.sum(weights, 0), new
    out = accumulator / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + query * D + column, out.to(out_ptr.dtype.element_ty), mask=column < D)
    tl.store(lse_ptr + query, highest + tl.log(total))
