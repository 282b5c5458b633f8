"""Paged attention for a ragged batch in Triton: a few queries of one sequence per program, KV cache in blocks.

Letters: B sequences, N query heads, K KV heads, GROUP = N/K, D head dimension. A cache is (num_blocks, BLOCK_SIZE, K,
D); the block table (B, max blocks) holds the ids of each sequence's blocks, in order.

The rows of a tile are QUERIES new tokens of a sequence, each with its whole group of heads, so that a key is loaded
once for all of them (as in vLLM's unified attention kernel). Sequences have different numbers of queries, and tiles are
numbered without reading how many: the tiles of sequence b start at query_start_loc[b] // QUERIES + b, which leaves
enough tiles for each sequence and at most one idle tile between two.
"""

from __future__ import annotations

from mlsys_lab.kernels.decode_attention.triton_kernels import load_tokens
from mlsys_lab.kernels.triton_language import LOG2_E, dot, tl, triton


@triton.jit
def packed_kernel(
    q_ptr, k_ptr, v_ptr, block_table_ptr, seq_lens_ptr, query_start_loc_ptr, out_ptr,
    stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh, stride_table, B, scale,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, BLOCK_B: tl.constexpr, WINDOW: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend with one tile of queries for one KV head's group."""
    tile, h = tl.program_id(0), tl.program_id(1)
    seqs = tl.arange(0, BLOCK_B)
    first_tiles = tl.load(query_start_loc_ptr + seqs, mask=seqs < B, other=0) // QUERIES + seqs
    b = tl.sum(((first_tiles <= tile) & (seqs < B)).to(tl.int32), 0) - 1
    start = tl.load(query_start_loc_ptr + b).to(tl.int32)
    num_queries = tl.load(query_start_loc_ptr + b + 1).to(tl.int32) - start
    length = tl.load(seq_lens_ptr + b).to(tl.int32)
    first = (tile - start // QUERIES - b) * QUERIES  # of the sequence's queries; past the last one in an idle tile
    past = length - num_queries

    rows, columns = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    query, head = first + rows // GROUP, h * GROUP + rows % GROUP
    q_mask = ((rows < QUERIES * GROUP) & (query < num_queries))[:, None] & (columns < D)[None, :]
    token = (start + query).to(tl.int64)
    q_ptrs = q_ptr + token[:, None] * stride_qt + head[:, None] * stride_qh + columns[None, :]
    q = tl.load(q_ptrs, mask=q_mask, other=0.0)
    k_ptr += h * stride_kh
    v_ptr += h * stride_vh
    begin, end = 0, past + min(first + QUERIES, num_queries)
    if WINDOW > 0:
        begin = max(0, past + first - WINDOW + 1)
    if first >= num_queries:
        end = begin
    accumulator = tl.zeros((ROWS, BLOCK_D), tl.float32)
    row_sum = tl.zeros((ROWS,), tl.float32)
    row_max = tl.full((ROWS,), -float("inf"), tl.float32)
    for n in range(begin, end, BLOCK_N):
        keys = n + tl.arange(0, BLOCK_N)
        mask = keys < end
        block_ids = tl.load(block_table_ptr + b.to(tl.int64) * stride_table + keys // BLOCK_SIZE, mask=mask, other=0)
        k = load_tokens(k_ptr, block_ids, keys, mask, stride_kb, stride_kt, D, BLOCK_D, BLOCK_SIZE)
        scores = dot(q, k.T, None, PRECISION) * (scale * LOG2_E)
        distance = keys[None, :] - (past + query)[:, None]
        visible = distance <= 0
        if WINDOW > 0:
            visible = visible & (distance > -WINDOW)
        scores = tl.where(visible, scores, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        safe_max = tl.where(new_max == -float("inf"), 0.0, new_max)  # -inf if the row's window begins in a later tile
        p = tl.exp2(scores - safe_max[:, None])
        rescale = tl.exp2(row_max - safe_max)
        row_sum = row_sum * rescale + tl.sum(p, 1)
        v = load_tokens(v_ptr, block_ids, keys, mask, stride_vb, stride_vt, D, BLOCK_D, BLOCK_SIZE)
        accumulator = dot(p.to(v.dtype), v, accumulator * rescale[:, None], PRECISION)
        row_max = new_max

    out = accumulator / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    out_offsets = (token * tl.num_programs(1) * GROUP + head) * D  # out is (Q, N, D)
    tl.store(out_ptr + out_offsets[:, None] + columns[None, :], out.to(out_ptr.dtype.element_ty), mask=q_mask)
