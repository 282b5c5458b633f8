"""Flash attention in Triton: softmax(scale · Q·Kᵀ)·V and its gradients, without ever storing the scores.

Letters: B batch, N query heads, K key/value heads, GROUP = N/K, S queries, T keys, D head dimension. Q, the output
and their gradients are (B, N, S, D), K and V (B, K, T, D); log-sum-exp and δ are (B, N, S) in float32. With CAUSAL,
query i sees the keys up to i + T - S: the last query sees all.

Tiles are loaded and stored through tensor descriptors, by the copy engine (TMA) on Hopper. Rows past the end and
columns past D are loaded as zeros and not stored. Scores are kept in base 2 (score · scale · log2 e), since GPUs
compute 2ˣ in hardware. Tiles whose keys are visible to all queries of a program are processed without a mask.

After Dao et al. (arXiv:2205.14135), Dao (arXiv:2307.08691) and Triton's tutorial 06.
"""

from __future__ import annotations

from mlsys_lab.kernels.triton_language import LN_2, LOG2_E, dot, tl, triton


@triton.jit
def load_rows(desc, b, h, first, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load rows of one head, from `first` on, as a (BLOCK, BLOCK_D) tile."""
    return desc.load([b, h, first, 0]).reshape(BLOCK, BLOCK_D)


@triton.jit
def store_rows(desc, b, h, first, value, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Store a (BLOCK, BLOCK_D) tile as rows of one head, from `first` on."""
    desc.store([b, h, first, 0], value.to(desc.dtype).reshape(1, 1, BLOCK, BLOCK_D))


@triton.jit
def program_block(rows, heads, BLOCK: tl.constexpr, LAST_FIRST: tl.constexpr):
    """Batch index, head and first row of this program. Consecutive programs share a head, and its keys in the L2 cache.

    LAST_FIRST: start with the last block of rows, which has the most keys under a causal mask, to balance the load.
    """
    blocks = tl.cdiv(rows, BLOCK)
    bh, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    if LAST_FIRST:
        block = blocks - 1 - block
    return bh // heads, bh % heads, block * BLOCK


@triton.jit
def key_range(first, S, T, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):
    """Ends of the keys visible to all of BLOCK_M queries from `first` on (in full tiles), and to any of them."""
    unmasked_end, end = T, T
    if CAUSAL:
        unmasked_end = min(T, max(0, first + 1 + T - S))
        end = min(T, max(0, first + BLOCK_M + T - S))
    return unmasked_end // BLOCK_N * BLOCK_N, end


@triton.jit
def attend_keys(
    accumulator, row_sum, row_max, q, k_desc, v_desc, b, h, begin, end, T, last_key, scale_log2,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Update the online softmax of the queries q (weighted values, sum, maximum) with the keys `begin` to `end`.

    A larger maximum rescales the previous sums by 2^(old - new). `last_key` is the last key visible to each query.
    """
    for n in range(begin, end, BLOCK_N):
        k = load_rows(k_desc, b, h, n, BLOCK_N, BLOCK_D)
        scores = dot(q, k.T, None, PRECISION)
        if MASKED:
            keys = n + tl.arange(0, BLOCK_N)[None, :]
            visible = (keys < T) & (keys <= last_key[:, None]) if CAUSAL else keys < T
            scores = tl.where(visible, scores, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1) * scale_log2)
        # A query without a visible key so far has the maximum -inf, and -inf - -inf is NaN.
        safe_max = tl.where(new_max == -float("inf"), 0.0, new_max) if MASKED else new_max
        p = tl.exp2(scores * scale_log2 - safe_max[:, None])
        rescale = tl.exp2(row_max - safe_max)
        row_sum = row_sum * rescale + tl.sum(p, 1)
        v = load_rows(v_desc, b, h, n, BLOCK_N, BLOCK_D)
        accumulator = dot(p.to(v.dtype), v, accumulator * rescale[:, None], PRECISION)
        row_max = new_max
    return accumulator, row_sum, row_max


@triton.jit
def forward_kernel(
    q_desc, k_desc, v_desc, out_desc, lse_ptr, N, S, T, scale,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    CAUSAL: tl.constexpr, SKIP_MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of BLOCK_M queries of one head. SKIP_MASKED: skip tiles that the mask hides, and mask only at its edge.

    Also stores each query's log-sum-exp, from which the backward pass recomputes the weights.
    """
    b, h, first = program_block(S, N, BLOCK_M, CAUSAL)
    q = load_rows(q_desc, b, h, first, BLOCK_M, BLOCK_D)
    queries = first + tl.arange(0, BLOCK_M)
    last_key, scale_log2 = queries + T - S, scale * LOG2_E

    accumulator = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    row_max = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    unmasked_end, end = 0, T
    if SKIP_MASKED:
        unmasked_end, end = key_range(first, S, T, BLOCK_M, BLOCK_N, CAUSAL)
        accumulator, row_sum, row_max = attend_keys(
            accumulator, row_sum, row_max, q, k_desc, v_desc, b, h // GROUP, 0, unmasked_end, T, last_key, scale_log2,
            BLOCK_N, BLOCK_D, CAUSAL, False, PRECISION,
        )  # fmt: skip
    accumulator, row_sum, row_max = attend_keys(
        accumulator, row_sum, row_max, q, k_desc, v_desc, b, h // GROUP, unmasked_end, end, T, last_key, scale_log2,
        BLOCK_N, BLOCK_D, CAUSAL, True, PRECISION,
    )  # fmt: skip

    out = accumulator / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]  # a query without visible keys gets zeros
    store_rows(out_desc, b, h, first, out, BLOCK_M, BLOCK_D)
    lse = (row_max + tl.log2(row_sum)) * LN_2
    tl.store(lse_ptr + (b * N + h).to(tl.int64) * S + queries, lse, mask=queries < S)


@triton.jit
def scores_kernel(
    q_desc, k_desc, scores_ptr, N, S, T, scale,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """First kernel of the naive step: store all scores, (B, N, S, T), -inf where a key is masked."""
    b, h, first = program_block(S, N, BLOCK_M, False)
    q = load_rows(q_desc, b, h, first, BLOCK_M, BLOCK_D)
    queries = (first + tl.arange(0, BLOCK_M))[:, None]
    for n in range(0, T, BLOCK_N):
        k = load_rows(k_desc, b, h // GROUP, n, BLOCK_N, BLOCK_D)
        keys = n + tl.arange(0, BLOCK_N)[None, :]
        scores = dot(q, k.T, None, PRECISION) * scale
        if CAUSAL:
            scores = tl.where(keys <= queries + T - S, scores, -float("inf"))
        row = ((b * N + h).to(tl.int64) * S + queries) * T
        tl.store(scores_ptr + row + keys, scores, mask=(queries < S) & (keys < T))


@triton.jit
def softmax_kernel(scores_ptr, lse_ptr, T, BLOCK_T: tl.constexpr):
    """Second kernel of the naive step: overwrite each row of scores with its softmax, one row per program."""
    row, keys = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_T)
    scores = tl.load(scores_ptr + row * T + keys, mask=keys < T, other=-float("inf"))
    row_max = tl.max(scores, 0)
    p = tl.exp(scores - tl.where(row_max == -float("inf"), 0.0, row_max))
    row_sum = tl.sum(p, 0)
    tl.store(scores_ptr + row * T + keys, p / tl.where(row_sum == 0.0, 1.0, row_sum), mask=keys < T)
    tl.store(lse_ptr + row, row_max + tl.log(row_sum))


@triton.jit
def values_kernel(
    weights_ptr, v_desc, out_desc, N, S, T,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Third kernel of the naive step: load the weights again and multiply them by the values."""
    b, h, first = program_block(S, N, BLOCK_M, False)
    queries = (first + tl.arange(0, BLOCK_M))[:, None]
    accumulator = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for n in range(0, T, BLOCK_N):
        v = load_rows(v_desc, b, h // GROUP, n, BLOCK_N, BLOCK_D)
        keys = n + tl.arange(0, BLOCK_N)[None, :]
        row = ((b * N + h).to(tl.int64) * S + queries) * T
        p = tl.load(weights_ptr + row + keys, mask=(queries < S) & (keys < T), other=0.0)
        accumulator = dot(p.to(v.dtype), v, accumulator, PRECISION)
    store_rows(out_desc, b, h, first, accumulator, BLOCK_M, BLOCK_D)


@triton.jit
def delta_kernel(
    out_desc, d_out_desc, d_lse_ptr, delta_ptr, N, S,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Store δ = Σ out·d_out - d_lse of each query, which its softmax gradient subtracts from every dP."""
    b, h, first = program_block(S, N, BLOCK_M, False)
    out = load_rows(out_desc, b, h, first, BLOCK_M, BLOCK_D).to(tl.float32)
    d_out = load_rows(d_out_desc, b, h, first, BLOCK_M, BLOCK_D).to(tl.float32)
    queries = first + tl.arange(0, BLOCK_M)
    row = (b * N + h).to(tl.int64) * S + queries
    d_lse = tl.load(d_lse_ptr + row, mask=queries < S, other=0.0)
    tl.store(delta_ptr + row, tl.sum(out * d_out, 1) - d_lse, mask=queries < S)


@triton.jit
def accumulate_dkdv(
    dk, dv, k, v, q_desc, d_out_desc, lse_ptr, delta_ptr, b, h, begin, end, S, shift, keys, scale_log2,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Accumulate dK/scale and dV of some keys over the queries `begin` to `end`; query i sees keys up to i + `shift`.

    Keys past the last need no mask: their gradients are not stored.
    """
    for m in range(begin, end, BLOCK_M):
        queries = m + tl.arange(0, BLOCK_M)
        q = load_rows(q_desc, b, h, m, BLOCK_M, BLOCK_D)
        lse = tl.load(lse_ptr + queries, mask=queries < S, other=float("inf"))  # past the last query, weights are 0
        p = tl.exp2(dot(k, q.T, None, PRECISION) * scale_log2 - (lse * LOG2_E)[None, :])  # (keys, BLOCK_M)
        if MASKED:
            p = tl.where(keys[:, None] <= (queries + shift)[None, :], p, 0.0)
        d_out = load_rows(d_out_desc, b, h, m, BLOCK_M, BLOCK_D)
        dv = dot(p.to(d_out.dtype), d_out, dv, PRECISION)
        delta = tl.load(delta_ptr + queries, mask=queries < S, other=0.0)
        ds = p * (dot(v, d_out.T, None, PRECISION) - delta[None, :])
        dk = dot(ds.to(q.dtype), q, dk, PRECISION)
    return dk, dv


@triton.jit
def dkdv_kernel(
    q_desc, k_desc, v_desc, d_out_desc, lse_ptr, delta_ptr, dk_desc, dv_desc, K, S, T, scale,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store dK and dV of BLOCK_N keys of one KV head, summed over the queries of all heads of its group."""
    b, kv_head, first = program_block(T, K, BLOCK_N, False)
    k = load_rows(k_desc, b, kv_head, first, BLOCK_N, BLOCK_D)
    v = load_rows(v_desc, b, kv_head, first, BLOCK_N, BLOCK_D)
    keys = first + tl.arange(0, BLOCK_N)
    begin, full = 0, 0  # first queries that see any, and all, of these keys
    if CAUSAL:
        begin = max(0, first + S - T) // BLOCK_M * BLOCK_M
        full = min(S, tl.cdiv(max(0, first + BLOCK_N - 1 + S - T), BLOCK_M) * BLOCK_M)

    dk, dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32), tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for g in range(GROUP):
        h = kv_head * GROUP + g
        row = (b * K * GROUP + h).to(tl.int64) * S
        if CAUSAL:
            dk, dv = accumulate_dkdv(
                dk, dv, k, v, q_desc, d_out_desc, lse_ptr + row, delta_ptr + row, b, h, begin, full, S, T - S, keys,
                scale * LOG2_E, BLOCK_M, BLOCK_D, True, PRECISION,
            )  # fmt: skip
        dk, dv = accumulate_dkdv(
            dk, dv, k, v, q_desc, d_out_desc, lse_ptr + row, delta_ptr + row, b, h, full, S, S, T - S, keys,
            scale * LOG2_E, BLOCK_M, BLOCK_D, False, PRECISION,
        )  # fmt: skip
    store_rows(dk_desc, b, kv_head, first, dk * scale, BLOCK_N, BLOCK_D)
    store_rows(dv_desc, b, kv_head, first, dv, BLOCK_N, BLOCK_D)


@triton.jit
def accumulate_dq(
    dq, q, d_out, lse_log2, delta, k_desc, v_desc, b, h, begin, end, T, last_key, scale_log2,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Accumulate dQ/scale of some queries over the keys `begin` to `end`."""
    for n in range(begin, end, BLOCK_N):
        k = load_rows(k_desc, b, h, n, BLOCK_N, BLOCK_D)
        p = tl.exp2(dot(q, k.T, None, PRECISION) * scale_log2 - lse_log2[:, None])
        if MASKED:
            keys = n + tl.arange(0, BLOCK_N)[None, :]
            p = tl.where((keys < T) & (keys <= last_key[:, None]) if CAUSAL else keys < T, p, 0.0)
        v = load_rows(v_desc, b, h, n, BLOCK_N, BLOCK_D)
        ds = p * (dot(d_out, v.T, None, PRECISION) - delta[:, None])
        dq = dot(ds.to(k.dtype), k, dq, PRECISION)
    return dq


@triton.jit
def dq_kernel(
    q_desc, k_desc, v_desc, d_out_desc, lse_ptr, delta_ptr, dq_desc, N, S, T, scale,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store dQ of BLOCK_M queries of one head, looping over the keys as the forward pass does."""
    b, h, first = program_block(S, N, BLOCK_M, CAUSAL)
    q = load_rows(q_desc, b, h, first, BLOCK_M, BLOCK_D)
    d_out = load_rows(d_out_desc, b, h, first, BLOCK_M, BLOCK_D)
    queries = first + tl.arange(0, BLOCK_M)
    row = (b * N + h).to(tl.int64) * S + queries
    lse_log2 = tl.load(lse_ptr + row, mask=queries < S, other=float("inf")) * LOG2_E
    delta = tl.load(delta_ptr + row, mask=queries < S, other=0.0)
    last_key, scale_log2 = queries + T - S, scale * LOG2_E
    unmasked_end, end = key_range(first, S, T, BLOCK_M, BLOCK_N, CAUSAL)

    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    dq = accumulate_dq(
        dq, q, d_out, lse_log2, delta, k_desc, v_desc, b, h // GROUP, 0, unmasked_end, T, last_key, scale_log2,
        BLOCK_N, BLOCK_D, CAUSAL, False, PRECISION,
    )  # fmt: skip
    dq = accumulate_dq(
        dq, q, d_out, lse_log2, delta, k_desc, v_desc, b, h // GROUP, unmasked_end, end, T, last_key, scale_log2,
        BLOCK_N, BLOCK_D, CAUSAL, True, PRECISION,
    )  # fmt: skip
    store_rows(dq_desc, b, h, first, dq * scale, BLOCK_M, BLOCK_D)
