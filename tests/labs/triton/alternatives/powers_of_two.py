"""Scores in base 2, a helper kernel for a block of keys, full tiles before the mask begins, Triton's own softmax."""


@triton.jit
def softmax_kernel(x_ptr, y_ptr, D, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    offsets = tl.program_id(0) * D + lanes
    x = tl.load(x_ptr + offsets, mask=lanes < D, other=float("-inf")).to(tl.float32)
    tl.store(y_ptr + offsets, tl.softmax(x), mask=lanes < D)


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
    full = first // BLOCK_N * BLOCK_N
    for n in range(0, full, BLOCK_N):
        keys = n + tl.arange(0, BLOCK_N)[:, None]
        at = start + keys * D + d
        everything = (queries >= 0) & (keys >= 0).T
        state_max, state_sum, state = attend(
            q, k_ptr, v_ptr, at, d < D, everything, state_max, state_sum, state, scale * 1.4426950408889634
        )
    for n in range(full, tl.minimum(S, first + BLOCK_M), BLOCK_N):
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
    q_ptr, k_ptr, v_ptr, block_table_ptr, seq_lens_ptr, out_ptr, stride_table, scale,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    sequence, kv_head, kv_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    g, s, d = tl.arange(0, GROUP), tl.arange(0, BLOCK_SIZE), tl.arange(0, D)
    rows = sequence * kv_heads * GROUP + kv_head * GROUP + g
    q = tl.load(q_ptr + rows[:, None] * D + d[None, :]).to(tl.float32) * (scale * 1.4426950408889634)
    left = tl.load(seq_lens_ptr + sequence)
    block_table_ptr += sequence * stride_table
    state_max = tl.full([GROUP], float("-inf"), tl.float32)
    state_sum = tl.zeros([GROUP], tl.float32)
    state = tl.zeros([GROUP, D], tl.float32)
    while left > 0:
        at = tl.load(block_table_ptr) * BLOCK_SIZE * kv_heads * D
        at = at + s[:, None] * kv_heads * D + kv_head * D + d[None, :]
        k = tl.load(k_ptr + at, mask=s[:, None] < left, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + at, mask=s[:, None] < left, other=0.0).to(tl.float32)
        scores = tl.where(s[None, :] < left, tl.dot(q, tl.trans(k)), float("-inf"))
        new = tl.maximum(state_max, tl.max(scores, 1))
        p = tl.exp2(scores - new[:, None])
        old = tl.exp2(state_max - new)
        state_sum = state_sum * old + tl.sum(p, 1)
        state = state * old[:, None] + tl.dot(p, v)
        state_max = new
        left -= BLOCK_SIZE
        block_table_ptr += 1
    tl.store(out_ptr + rows[:, None] * D + d[None, :], state / state_sum[:, None])
