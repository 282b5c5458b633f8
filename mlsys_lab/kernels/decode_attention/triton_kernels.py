"""Paged decode attention in Triton: one query token per sequence, keys and values in the blocks of a KV cache.

Letters: B sequences, N query heads, K KV heads, GROUP = N/K, D head dimension. A cache is (num_blocks, BLOCK_SIZE, K,
D); the block table (B, max blocks) holds the ids of each sequence's blocks, in order.

A program loads the keys of one KV head for the queries of its whole group, so that each key is loaded once; the group's
queries are the rows of a tile, however few. The keys of a long sequence are split among programs, each with its own
softmax, and a second kernel combines them (flash-decoding, Dao et al. 2023; paged attention, arXiv:2309.06180).
"""

from __future__ import annotations

from mlsys_lab.kernels.triton_language import LN_2, LOG2_E, dot, tl, triton


@triton.jit
def load_tokens(
    cache_ptr, block_ids, keys, mask, stride_block, stride_token,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Load rows of one head from the KV cache for some keys of a sequence: (BLOCK_N, BLOCK_D)."""
    columns = tl.arange(0, BLOCK_D)[None, :]
    offsets = block_ids.to(tl.int64) * stride_block + keys % BLOCK_SIZE * stride_token
    return tl.load(cache_ptr + offsets[:, None] + columns, mask=mask[:, None] & (columns < D), other=0.0)


@triton.jit
def split_kernel(
    q_ptr, k_ptr, v_ptr, block_table_ptr, seq_lens_ptr, out_ptr, lse_ptr,
    stride_qb, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh, stride_table, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend over one split of a sequence's keys for one KV head's group; stores output and log-sum-exp."""
    b, h, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_splits = tl.num_programs(2)
    length = tl.load(seq_lens_ptr + b).to(tl.int32)
    split_size = tl.cdiv(tl.cdiv(length, num_splits), BLOCK_N) * BLOCK_N
    begin, end = split * split_size, min(length, (split + 1) * split_size)

    rows, columns = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    heads = h * GROUP + rows
    q_mask = (rows < GROUP)[:, None] & (columns < D)[None, :]
    q_ptrs = q_ptr + b.to(tl.int64) * stride_qb + heads[:, None] * stride_qh + columns[None, :]
    q = tl.load(q_ptrs, mask=q_mask, other=0.0)
    k_ptr += h * stride_kh
    v_ptr += h * stride_vh
    accumulator = tl.zeros((ROWS, BLOCK_D), tl.float32)
    row_sum = tl.zeros((ROWS,), tl.float32)
    row_max = tl.full((ROWS,), -float("inf"), tl.float32)
    for n in range(begin, end, BLOCK_N):
        keys = n + tl.arange(0, BLOCK_N)
        mask = keys < end
        block_ids = tl.load(block_table_ptr + b.to(tl.int64) * stride_table + keys // BLOCK_SIZE, mask=mask, other=0)
        k = load_tokens(k_ptr, block_ids, keys, mask, stride_kb, stride_kt, D, BLOCK_D, BLOCK_SIZE)
        scores = dot(q, k.T, None, PRECISION) * (scale * LOG2_E)
        scores = tl.where(mask[None, :], scores, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        p = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(p, 1)
        v = load_tokens(v_ptr, block_ids, keys, mask, stride_vb, stride_vt, D, BLOCK_D, BLOCK_SIZE)
        accumulator = dot(p.to(v.dtype), v, accumulator * rescale[:, None], PRECISION)
        row_max = new_max

    offsets = (b.to(tl.int64) * tl.num_programs(1) * GROUP + heads) * num_splits + split  # out is (B, N, num_splits, D)
    out = accumulator / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    tl.store(out_ptr + offsets[:, None] * D + columns[None, :], out.to(out_ptr.dtype.element_ty), mask=q_mask)
    tl.store(lse_ptr + offsets, (row_max + tl.log2(row_sum)) * LN_2, mask=rows < GROUP)


@triton.jit
def combine_kernel(
    split_out_ptr, split_lse_ptr, out_ptr, lse_ptr, num_splits,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_SPLITS: tl.constexpr,
):  # fmt: skip
    """Combine the splits' outputs of one query, each weighted by its fraction of the softmax's sum."""
    query, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_D)
    accumulator = tl.zeros((BLOCK_D,), tl.float32)
    total, running_max = 0.0, -float("inf")
    for first in range(0, num_splits, BLOCK_SPLITS):
        split = first + tl.arange(0, BLOCK_SPLITS)
        lse = tl.load(split_lse_ptr + query * num_splits + split, mask=split < num_splits, other=-float("inf"))
        new_max = tl.maximum(running_max, tl.max(lse, 0))
        safe_max = tl.where(new_max == -float("inf"), 0.0, new_max)  # splits without keys have weight 0
        weights, rescale = tl.exp(lse - safe_max), tl.exp(running_max - safe_max)
        ptrs = split_out_ptr + (query * num_splits + split)[:, None] * D + columns[None, :]
        outs = tl.load(ptrs, mask=(weights > 0.0)[:, None] & (columns < D)[None, :], other=0.0)
        accumulator = accumulator * rescale + tl.sum(outs * weights[:, None], 0)
        total, running_max = total * rescale + tl.sum(weights, 0), new_max
    out = accumulator / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + query * D + columns, out.to(out_ptr.dtype.element_ty), mask=columns < D)
    tl.store(lse_ptr + query, running_max + tl.log(total))
