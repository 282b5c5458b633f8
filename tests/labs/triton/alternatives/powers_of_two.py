"""Scores as powers of two, and whole tiles before the mask begins."""


@triton.jit
def attend(q, k_ptr, v_ptr, at, inside, seen, state_max, state_sum, state, scale):
    k = tl.load(k_ptr + at, mask=inside, other=0.0)
    v = tl.load(v_ptr + at, mask=inside, other=0.0)
    scores = tl.where(seen, tl.dot(q, k.T) * scale, float("-inf"))
    new = tl.maximum(state_max, tl.max(scores, 1))
    p = tl.exp2(scores - new[:, None])
    old = tl.exp2(state_max - new)
    return new, state_sum * old + tl.sum(p, 1), state * old[:, None] + tl.dot(p, v.to(tl.float32))


@triton.jit
def flash_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, S, D, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * BLOCK_M
    queries = first + tl.arange(0, BLOCK_M)[:, None]
    d = tl.arange(0, BLOCK_D)[None, :]
    start = tl.program_id(1) * S * D
    q = tl.load(q_ptr + start + queries * D + d, mask=(queries < S) & (d < D), other=0.0)
    state_max = tl.zeros([BLOCK_M], tl.float32) - float("inf")
    state_sum = tl.zeros([BLOCK_M], tl.float32)
    state = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    whole = first // BLOCK_N * BLOCK_N
    for n in range(0, whole, BLOCK_N):
        keys = n + tl.arange(0, BLOCK_N)[:, None]
        at = start + keys * D + d
        everything = (queries >= 0) & (keys >= 0).T
        state_max, state_sum, state = attend(
            q, k_ptr, v_ptr, at, d < D, everything, state_max, state_sum, state, scale * 1.4426950408889634
        )
    for n in range(whole, tl.minimum(S, first + BLOCK_M), BLOCK_N):
        keys = n + tl.arange(0, BLOCK_N)[:, None]
        at = start + keys * D + d
        seen = (queries >= keys.T) & (keys < S).T
        state_max, state_sum, state = attend(
            q, k_ptr, v_ptr, at, (keys < S) & (d < D), seen, state_max, state_sum, state, scale * 1.4426950408889634
        )
    tl.store(out_ptr + start + queries * D + d, state / state_sum[:, None], mask=(queries < S) & (d < D))
    rows = first + tl.arange(0, BLOCK_M)
    lse = (state_max + tl.log2(state_sum)) * 0.6931471805599453
    tl.store(lse_ptr + tl.program_id(1) * S + rows, lse, mask=rows < S)


def flash_attention_bytes(S, D, block):
    tiles = sum(1 for i in range(S // block) for j in range(i + 1))
    return 4 * (2 * S * D + S) + tiles * 2 * 4 * block * D


def naive_attention_bytes(S, D, block):
    return 4 * (4 * S * S + 3 * S * S * D // block + S * D)


@triton.jit
def decode_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, length_ptr, out_ptr, most_pages, scale,
    GROUP: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    sequence, kv_head, kv_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    g, s, d = tl.arange(0, GROUP), tl.arange(0, PAGE), tl.arange(0, D)
    rows = sequence * kv_heads * GROUP + kv_head * GROUP + g
    q = tl.load(q_ptr + rows[:, None] * D + d[None, :]).to(tl.float32) * (scale * 1.4426950408889634)
    left = tl.load(length_ptr + sequence)
    table_ptr += sequence * most_pages
    state_max = tl.full([GROUP], float("-inf"), tl.float32)
    state_sum = tl.zeros([GROUP], tl.float32)
    state = tl.zeros([GROUP, D], tl.float32)
    while left > 0:
        at = tl.load(table_ptr) * PAGE * kv_heads * D + s[:, None] * kv_heads * D + kv_head * D + d[None, :]
        k = tl.load(k_ptr + at, mask=s[:, None] < left, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + at, mask=s[:, None] < left, other=0.0).to(tl.float32)
        scores = tl.where(s[None, :] < left, tl.dot(q, tl.trans(k)), float("-inf"))
        new = tl.maximum(state_max, tl.max(scores, 1))
        p = tl.exp2(scores - new[:, None])
        old = tl.exp2(state_max - new)
        state_sum = state_sum * old + tl.sum(p, 1)
        state = state * old[:, None] + tl.dot(p, v)
        state_max = new
        left -= PAGE
        table_ptr += 1
    tl.store(out_ptr + rows[:, None] * D + d[None, :], state / state_sum[:, None])
