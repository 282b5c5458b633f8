"""Attention for a ragged batch in Triton: a few queries of one sequence over keys and values in pages of a cache.

Letters: B sequences, N query heads, K key/value heads, GROUP = N/K, D width of a head. A cache is (pages, PAGE, K, D);
the table (B, pages of the longest) says in which page each PAGE tokens of a sequence lie.

A tile's rows are QUERIES new tokens of a sequence, each with its whole group of heads, so that a key is read once for
all of them (as vLLM's unified kernel has it). Sequences have different numbers of queries, and tiles are numbered
through without asking how many: sequence b's tiles begin at starts[b] // QUERIES + b, which leaves room enough for each
and at most one idle tile between two.
"""

from __future__ import annotations

from mlsys_lab.kernels.decode_attention.triton_kernels import LOG2_E, load_tokens
from mlsys_lab.kernels.tiles import dot
from mlsys_lab.kernels.triton_language import tl, triton


@triton.jit
def packed_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, starts_ptr, out_ptr,
    q_t, q_h, k_page, k_slot, k_h, v_page, v_slot, v_h, table_b, sequences, scale,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, SEQUENCES: tl.constexpr, WINDOW: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend with one tile of queries for one key/value head's group."""
    tile, h = tl.program_id(0), tl.program_id(1)
    every = tl.arange(0, SEQUENCES)
    firsts = tl.load(starts_ptr + every, mask=every < sequences, other=0) // QUERIES + every
    b = tl.sum(((firsts <= tile) & (every < sequences)).to(tl.int32), 0) - 1
    start = tl.load(starts_ptr + b).to(tl.int32)
    count = tl.load(starts_ptr + b + 1).to(tl.int32) - start
    length = tl.load(lengths_ptr + b).to(tl.int32)
    first = (tile - start // QUERIES - b) * QUERIES  # of the sequence's new tokens; an idle tile's is behind them
    past = length - count

    row, column = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    query, head = first + row // GROUP, h * GROUP + row % GROUP
    real = (row < QUERIES * GROUP) & (query < count)
    kept = real[:, None] & (column < D)[None, :]
    at = (start + query).to(tl.int64)
    q = tl.load(q_ptr + at[:, None] * q_t + head[:, None] * q_h + column[None, :], mask=kept, other=0.0)
    k_ptr += h * k_h
    v_ptr += h * v_h
    begin, end = 0, past + min(first + QUERIES, count)
    if WINDOW > 0:
        begin = max(0, past + first - WINDOW + 1)
    if first >= count:
        end = begin
    accumulator = tl.zeros((ROWS, BLOCK_D), tl.float32)
    row_sum = tl.zeros((ROWS,), tl.float32)
    row_max = tl.full((ROWS,), -float("inf"), tl.float32)
    for n in range(begin, end, BLOCK_N):
        keys = n + tl.arange(0, BLOCK_N)
        inside = keys < end
        pages = tl.load(table_ptr + b.to(tl.int64) * table_b + keys // PAGE, mask=inside, other=0)
        k = load_tokens(k_ptr, pages, keys, inside, k_page, k_slot, D, BLOCK_D, PAGE)
        scores = dot(q, k.T, None, PRECISION) * (scale * LOG2_E)
        ahead = keys[None, :] - (past + query)[:, None]
        seen = ahead <= 0
        if WINDOW > 0:
            seen = seen & (ahead > -WINDOW)
        scores = tl.where(seen, scores, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        anchor = tl.where(new_max == -float("inf"), 0.0, new_max)  # a row whose window begins in a later tile
        p = tl.exp2(scores - anchor[:, None])
        shrink = tl.exp2(row_max - anchor)
        row_sum = row_sum * shrink + tl.sum(p, 1)
        v = load_tokens(v_ptr, pages, keys, inside, v_page, v_slot, D, BLOCK_D, PAGE)
        accumulator = dot(p.to(v.dtype), v, accumulator * shrink[:, None], PRECISION)
        row_max = new_max

    out = accumulator / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    out_at = (at * tl.num_programs(1) * GROUP + head) * D  # the output is (Q, N, D)
    tl.store(out_ptr + out_at[:, None] + column[None, :], out.to(out_ptr.dtype.element_ty), mask=kept)
