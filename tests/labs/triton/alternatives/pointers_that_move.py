"""Pointers that are moved along, maxima and sums by other words, and a loop where the reference has whole rows."""


@triton.jit
def silu_mul_kernel(gate_ptr, up_ptr, y_ptr, size, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    lanes = tl.arange(0, BLOCK)
    gate = tl.load(gate_ptr + start + lanes, mask=lanes < size - start, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + start + lanes, mask=lanes < size - start, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y_ptr + start + lanes, y.to(y_ptr.dtype.element_ty), mask=lanes < size - start)


@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    x_ptr += tl.program_id(0) * columns
    y_ptr += tl.program_id(0) * columns
    x = tl.load(x_ptr + lanes, mask=lanes < columns, other=0.0).to(tl.float32)
    x = tl.where(lanes < columns, x, float("-inf"))
    x = x - tl.max(x, axis=0)
    tl.store(y_ptr + lanes, tl.exp(x - tl.log(tl.sum(tl.exp(x), axis=0))), mask=lanes < columns)


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, a_m, a_k, b_k, b_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    m, n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    in_m, in_n, in_k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + m * BLOCK_M * a_m + in_m[:, None] * a_m + in_k[None, :] * a_k
    b_ptrs = b_ptr + n * BLOCK_N * b_n + in_k[:, None] * b_k + in_n[None, :] * b_n
    left_m, left_n = M - m * BLOCK_M, N - n * BLOCK_N
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    left = K
    while left > 0:
        a = tl.load(a_ptrs, mask=(in_m[:, None] < left_m) & (in_k[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(in_k[:, None] < left) & (in_n[None, :] < left_n), other=0.0)
        sums += tl.dot(a.to(tl.float32), b.to(tl.float32))
        a_ptrs += BLOCK_K * a_k
        b_ptrs += BLOCK_K * b_k
        left -= BLOCK_K
    c_ptrs = c_ptr + (m * BLOCK_M + in_m)[:, None] * N + (n * BLOCK_N + in_n)[None, :]
    tl.store(c_ptrs, sums.to(c_ptr.dtype.element_ty), mask=(in_m[:, None] < left_m) & (in_n[None, :] < left_n))


@triton.jit
def tile_of(program, tiles_m, tiles_n, GROUP: tl.constexpr):
    above = program // (GROUP * tiles_n) * GROUP
    high = tl.minimum(tiles_m - above, GROUP)
    rest = program - above * tiles_n
    return above + rest % high, rest // high
