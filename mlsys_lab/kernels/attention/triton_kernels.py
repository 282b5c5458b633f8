"""Flash attention in Triton: softmax(scale · Q·Kᵀ)·V and its gradients, without ever storing the scores.

Letters: B batch, N query heads, K key/value heads, GROUP = N/K, S queries, T keys, D width of a head. Q and what
belongs to it are (B, N, S, D), keys and values (B, K, T, D); log-sum-exp and δ are (B, N, S) in float32. With CAUSAL,
query i sees the keys up to i + T - S: the last query sees all.

Whole tiles arrive and leave by tensor descriptors: on Hopper the copy engine fetches them. Rows past the end and
columns past D arrive as zeros and are not stored. Scores are kept as powers of two (score · scale · log2 e), since 2ˣ
is what a GPU computes. Tiles that every query of a program sees whole are worked through without a mask.

After Dao et al. (arXiv:2205.14135), Dao (arXiv:2307.08691) and Triton's tutorial 06.
"""

from __future__ import annotations

from mlsys_lab.kernels.tiles import dot
from mlsys_lab.kernels.triton_language import tl, triton

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def load_rows(tiles, b, h, first, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load rows of one head, from `first` on, as a (BLOCK, BLOCK_D) tile."""
    return tiles.load([b, h, first, 0]).reshape(BLOCK, BLOCK_D)


@triton.jit
def store_rows(tiles, b, h, first, value, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Store a (BLOCK, BLOCK_D) tile as rows of one head, from `first` on."""
    tiles.store([b, h, first, 0], value.to(tiles.dtype).reshape(1, 1, BLOCK, BLOCK_D))


@triton.jit
def place(rows, heads, BLOCK: tl.constexpr, LAST_FIRST: tl.constexpr):
    """Sequence, head and first row of this program. Neighbours have one head: they share its keys in the L2 cache.

    LAST_FIRST: a causal mask makes the last queries' blocks the longest, and long work is better begun early.
    """
    blocks = tl.cdiv(rows, BLOCK)
    one, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    if LAST_FIRST:
        block = blocks - 1 - block
    return one // heads, one % heads, block * BLOCK


@triton.jit
def reach(first, S, T, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):
    """Ends of the keys that all of BLOCK_M queries from `first` on see, in whole tiles, and that any of them sees."""
    whole, end = T, T
    if CAUSAL:
        whole = min(T, max(0, first + 1 + T - S))
        end = min(T, max(0, first + BLOCK_M + T - S))
    return whole // BLOCK_N * BLOCK_N, end


@triton.jit
def attend(
    accumulator, row_sum, row_max, q, k_tiles, v_tiles, b, h, begin, end, T, limit, scale_log2,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add keys `begin` to `end` to the running softmax of the queries q: its weighted values, sum and maximum.

    A larger maximum shrinks what was summed before by 2^(old - new). `limit` is the last key that each query sees.
    """
    for n in range(begin, end, BLOCK_N):
        k = load_rows(k_tiles, b, h, n, BLOCK_N, BLOCK_D)
        scores = dot(q, k.T, None, PRECISION)
        if MASKED:
            keys = n + tl.arange(0, BLOCK_N)[None, :]
            seen = (keys < T) & (keys <= limit[:, None]) if CAUSAL else keys < T
            scores = tl.where(seen, scores, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1) * scale_log2)
        # A query that has seen no key yet has the maximum -inf, and -inf - -inf is no number.
        anchor = tl.where(new_max == -float("inf"), 0.0, new_max) if MASKED else new_max
        p = tl.exp2(scores * scale_log2 - anchor[:, None])
        shrink = tl.exp2(row_max - anchor)
        row_sum = row_sum * shrink + tl.sum(p, 1)
        v = load_rows(v_tiles, b, h, n, BLOCK_N, BLOCK_D)
        accumulator = dot(p.to(v.dtype), v, accumulator * shrink[:, None], PRECISION)
        row_max = new_max
    return accumulator, row_sum, row_max


@triton.jit
def forward_kernel(
    q_tiles, k_tiles, v_tiles, out_tiles, lse_ptr, N, S, T, scale,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    CAUSAL: tl.constexpr, SKIP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of BLOCK_M queries of one head over their keys. SKIP: pass over what no query sees, mask edges only.

    Also writes each query's log-sum-exp, from which the backward pass has the weights again.
    """
    b, h, first = place(S, N, BLOCK_M, CAUSAL)
    q = load_rows(q_tiles, b, h, first, BLOCK_M, BLOCK_D)
    queries = first + tl.arange(0, BLOCK_M)
    limit, scale_log2 = queries + T - S, scale * LOG2_E

    accumulator = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    row_max = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    whole, end = 0, T
    if SKIP:
        whole, end = reach(first, S, T, BLOCK_M, BLOCK_N, CAUSAL)
        accumulator, row_sum, row_max = attend(
            accumulator, row_sum, row_max, q, k_tiles, v_tiles, b, h // GROUP, 0, whole, T, limit, scale_log2,
            BLOCK_N, BLOCK_D, CAUSAL, False, PRECISION,
        )  # fmt: skip
    accumulator, row_sum, row_max = attend(
        accumulator, row_sum, row_max, q, k_tiles, v_tiles, b, h // GROUP, whole, end, T, limit, scale_log2,
        BLOCK_N, BLOCK_D, CAUSAL, True, PRECISION,
    )  # fmt: skip

    out = accumulator / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]  # a query that sees no key gets zeros
    store_rows(out_tiles, b, h, first, out, BLOCK_M, BLOCK_D)
    lse = (row_max + tl.log2(row_sum)) * LN_2
    tl.store(lse_ptr + (b * N + h).to(tl.int64) * S + queries, lse, mask=queries < S)


@triton.jit
def scores_kernel(
    q_tiles, k_tiles, scores_ptr, N, S, T, scale,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """First kernel of the naive step: write all scores to memory, (B, N, S, T), -inf where the mask hides a key."""
    b, h, first = place(S, N, BLOCK_M, False)
    q = load_rows(q_tiles, b, h, first, BLOCK_M, BLOCK_D)
    queries = (first + tl.arange(0, BLOCK_M))[:, None]
    for n in range(0, T, BLOCK_N):
        k = load_rows(k_tiles, b, h // GROUP, n, BLOCK_N, BLOCK_D)
        keys = n + tl.arange(0, BLOCK_N)[None, :]
        scores = dot(q, k.T, None, PRECISION) * scale
        if CAUSAL:
            scores = tl.where(keys <= queries + T - S, scores, -float("inf"))
        row = ((b * N + h).to(tl.int64) * S + queries) * T
        tl.store(scores_ptr + row + keys, scores, mask=(queries < S) & (keys < T))


@triton.jit
def softmax_kernel(scores_ptr, lse_ptr, T, BLOCK_T: tl.constexpr):
    """Second kernel of the naive step: write the softmax of each row of scores in its place, one row a program."""
    row, keys = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_T)
    scores = tl.load(scores_ptr + row * T + keys, mask=keys < T, other=-float("inf"))
    highest = tl.max(scores, 0)
    p = tl.exp(scores - tl.where(highest == -float("inf"), 0.0, highest))
    total = tl.sum(p, 0)
    tl.store(scores_ptr + row * T + keys, p / tl.where(total == 0.0, 1.0, total), mask=keys < T)
    tl.store(lse_ptr + row, highest + tl.log(total))


@triton.jit
def values_kernel(
    weights_ptr, v_tiles, out_tiles, N, S, T,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Third kernel of the naive step: read the weights again and multiply them with the values."""
    b, h, first = place(S, N, BLOCK_M, False)
    queries = (first + tl.arange(0, BLOCK_M))[:, None]
    accumulator = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for n in range(0, T, BLOCK_N):
        v = load_rows(v_tiles, b, h // GROUP, n, BLOCK_N, BLOCK_D)
        keys = n + tl.arange(0, BLOCK_N)[None, :]
        row = ((b * N + h).to(tl.int64) * S + queries) * T
        p = tl.load(weights_ptr + row + keys, mask=(queries < S) & (keys < T), other=0.0)
        accumulator = dot(p.to(v.dtype), v, accumulator, PRECISION)
    store_rows(out_tiles, b, h, first, accumulator, BLOCK_M, BLOCK_D)


@triton.jit
def delta_kernel(
    out_tiles, d_out_tiles, d_lse_ptr, delta_ptr, N, S,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write δ = Σ out·d_out - d_lse of each query: what the gradient of its softmax subtracts from every score's."""
    b, h, first = place(S, N, BLOCK_M, False)
    out = load_rows(out_tiles, b, h, first, BLOCK_M, BLOCK_D).to(tl.float32)
    d_out = load_rows(d_out_tiles, b, h, first, BLOCK_M, BLOCK_D).to(tl.float32)
    queries = first + tl.arange(0, BLOCK_M)
    row = (b * N + h).to(tl.int64) * S + queries
    d_lse = tl.load(d_lse_ptr + row, mask=queries < S, other=0.0)
    tl.store(delta_ptr + row, tl.sum(out * d_out, 1) - d_lse, mask=queries < S)


@triton.jit
def key_value_gradients(
    dk, dv, k, v, q_tiles, d_out_tiles, lse_ptr, delta_ptr, b, h, begin, end, S, shift, keys, scale_log2,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add to dK/scale and dV of some keys what queries `begin` to `end` give; query i sees keys to i + `shift`.

    Keys past the last need no mask: what comes out for them is not stored.
    """
    for m in range(begin, end, BLOCK_M):
        queries = m + tl.arange(0, BLOCK_M)
        q = load_rows(q_tiles, b, h, m, BLOCK_M, BLOCK_D)
        lse = tl.load(lse_ptr + queries, mask=queries < S, other=float("inf"))  # past the last query, weights are 0
        p = tl.exp2(dot(k, q.T, None, PRECISION) * scale_log2 - (lse * LOG2_E)[None, :])  # (keys, BLOCK_M)
        if MASKED:
            p = tl.where(keys[:, None] <= (queries + shift)[None, :], p, 0.0)
        d_out = load_rows(d_out_tiles, b, h, m, BLOCK_M, BLOCK_D)
        dv = dot(p.to(d_out.dtype), d_out, dv, PRECISION)
        delta = tl.load(delta_ptr + queries, mask=queries < S, other=0.0)
        d_scores = p * (dot(v, d_out.T, None, PRECISION) - delta[None, :])
        dk = dot(d_scores.to(q.dtype), q, dk, PRECISION)
    return dk, dv


@triton.jit
def key_value_kernel(
    q_tiles, k_tiles, v_tiles, d_out_tiles, lse_ptr, delta_ptr, dk_tiles, dv_tiles, K, S, T, scale,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dK and dV of BLOCK_N keys of one key/value head, from the queries of all heads of its group."""
    b, kv_head, first = place(T, K, BLOCK_N, False)
    k = load_rows(k_tiles, b, kv_head, first, BLOCK_N, BLOCK_D)
    v = load_rows(v_tiles, b, kv_head, first, BLOCK_N, BLOCK_D)
    keys = first + tl.arange(0, BLOCK_N)
    begin, whole = 0, 0
    if CAUSAL:
        begin = max(0, first + S - T) // BLOCK_M * BLOCK_M  # the first query that sees any of these keys
        whole = min(S, tl.cdiv(max(0, first + BLOCK_N - 1 + S - T), BLOCK_M) * BLOCK_M)  # and that sees all of them

    dk, dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32), tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for g in range(GROUP):
        h = kv_head * GROUP + g
        row = (b * K * GROUP + h).to(tl.int64) * S
        if CAUSAL:
            dk, dv = key_value_gradients(
                dk, dv, k, v, q_tiles, d_out_tiles, lse_ptr + row, delta_ptr + row, b, h, begin, whole, S, T - S, keys,
                scale * LOG2_E, BLOCK_M, BLOCK_D, True, PRECISION,
            )  # fmt: skip
        dk, dv = key_value_gradients(
            dk, dv, k, v, q_tiles, d_out_tiles, lse_ptr + row, delta_ptr + row, b, h, whole, S, S, T - S, keys,
            scale * LOG2_E, BLOCK_M, BLOCK_D, False, PRECISION,
        )  # fmt: skip
    store_rows(dk_tiles, b, kv_head, first, dk * scale, BLOCK_N, BLOCK_D)
    store_rows(dv_tiles, b, kv_head, first, dv, BLOCK_N, BLOCK_D)


@triton.jit
def query_gradients(
    dq, q, d_out, lse_log2, delta, k_tiles, v_tiles, b, h, begin, end, T, limit, scale_log2,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add to dQ/scale of some queries what the keys from `begin` to `end` give."""
    for n in range(begin, end, BLOCK_N):
        k = load_rows(k_tiles, b, h, n, BLOCK_N, BLOCK_D)
        p = tl.exp2(dot(q, k.T, None, PRECISION) * scale_log2 - lse_log2[:, None])
        if MASKED:
            keys = n + tl.arange(0, BLOCK_N)[None, :]
            p = tl.where((keys < T) & (keys <= limit[:, None]) if CAUSAL else keys < T, p, 0.0)
        v = load_rows(v_tiles, b, h, n, BLOCK_N, BLOCK_D)
        d_scores = p * (dot(d_out, v.T, None, PRECISION) - delta[:, None])
        dq = dot(d_scores.to(k.dtype), k, dq, PRECISION)
    return dq


@triton.jit
def query_kernel(
    q_tiles, k_tiles, v_tiles, d_out_tiles, lse_ptr, delta_ptr, dq_tiles, N, S, T, scale,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dQ of BLOCK_M queries of one head, going over the keys once more as the forward pass does."""
    b, h, first = place(S, N, BLOCK_M, CAUSAL)
    q = load_rows(q_tiles, b, h, first, BLOCK_M, BLOCK_D)
    d_out = load_rows(d_out_tiles, b, h, first, BLOCK_M, BLOCK_D)
    queries = first + tl.arange(0, BLOCK_M)
    row = (b * N + h).to(tl.int64) * S + queries
    lse_log2 = tl.load(lse_ptr + row, mask=queries < S, other=float("inf")) * LOG2_E
    delta = tl.load(delta_ptr + row, mask=queries < S, other=0.0)
    limit, scale_log2 = queries + T - S, scale * LOG2_E
    whole, end = reach(first, S, T, BLOCK_M, BLOCK_N, CAUSAL)

    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    dq = query_gradients(
        dq, q, d_out, lse_log2, delta, k_tiles, v_tiles, b, h // GROUP, 0, whole, T, limit, scale_log2,
        BLOCK_N, BLOCK_D, CAUSAL, False, PRECISION,
    )  # fmt: skip
    dq = query_gradients(
        dq, q, d_out, lse_log2, delta, k_tiles, v_tiles, b, h // GROUP, whole, end, T, limit, scale_log2,
        BLOCK_N, BLOCK_D, CAUSAL, True, PRECISION,
    )  # fmt: skip
    store_rows(dq_tiles, b, h, first, dq * scale, BLOCK_M, BLOCK_D)
