"""Pointers that are moved along, a helper kernel that loads a row, x̂ expanded, and sums that are kept as they come."""


@triton.jit
def silu_mul_kernel(gate_ptr, up_ptr, y_ptr, n, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    lanes = tl.arange(0, BLOCK)
    gate = tl.load(gate_ptr + start + lanes, mask=lanes < n - start, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + start + lanes, mask=lanes < n - start, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y_ptr + start + lanes, y.to(y_ptr.dtype.element_ty), mask=lanes < n - start)


@triton.jit
def softmax_kernel(x_ptr, y_ptr, D, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    x_ptr += tl.program_id(0) * D
    y_ptr += tl.program_id(0) * D
    x = tl.load(x_ptr + lanes, mask=lanes < D, other=0.0).to(tl.float32)
    x = tl.where(lanes < D, x, float("-inf"))
    x = x - tl.max(x, axis=0)
    tl.store(y_ptr + lanes, tl.exp(x - tl.log(tl.sum(tl.exp(x), axis=0))), mask=lanes < D)


@triton.jit
def row_of(ptr, row, D, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    return tl.load(ptr + row * D + lanes, mask=lanes < D, other=0.0).to(tl.float32)


@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, y_ptr, r_ptr, D, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x, w = row_of(x_ptr, row, D, BLOCK), row_of(w_ptr, 0, D, BLOCK)
    r = tl.rsqrt(tl.sum(x * x) / D + eps)
    tl.store(r_ptr + row, r)
    lanes = tl.arange(0, BLOCK)
    tl.store(y_ptr + row * D + lanes, (x * r * w).to(y_ptr.dtype.element_ty), mask=lanes < D)


@triton.jit
def rms_norm_backward_kernel(dy_ptr, x_ptr, w_ptr, r_ptr, dx_ptr, partials_ptr, N, D, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    w = row_of(w_ptr, 0, D, BLOCK)
    partial = tl.zeros([BLOCK], tl.float32)
    row = tl.program_id(0)
    while row < N:
        x, dy = row_of(x_ptr, row, D, BLOCK), row_of(dy_ptr, row, D, BLOCK)
        r = tl.load(r_ptr + row)
        inner = tl.sum(dy * w * x)
        dx = r * dy * w - r * r * r * x * inner / D
        tl.store(dx_ptr + row * D + lanes, dx, mask=lanes < D)
        partial += dy * x * r
        row += tl.num_programs(0)
    tl.store(partials_ptr + tl.program_id(0) * D + lanes, partial, mask=lanes < D)


@triton.jit
def sum_rows_kernel(partials_ptr, dw_ptr, P, D, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dw = tl.load(partials_ptr + lanes, mask=lanes < D)
    for p in range(1, P):
        dw += tl.load(partials_ptr + p * D + lanes, mask=lanes < D)
    tl.store(dw_ptr + lanes, dw, mask=lanes < D)


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    m, n = tile_index(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    in_m, in_n, in_k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + m * BLOCK_M * stride_am + in_m[:, None] * stride_am + in_k[None, :] * stride_ak
    b_ptrs = b_ptr + n * BLOCK_N * stride_bn + in_k[:, None] * stride_bk + in_n[None, :] * stride_bn
    left_m, left_n = M - m * BLOCK_M, N - n * BLOCK_N
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    left = K
    while left > 0:
        a = tl.load(a_ptrs, mask=(in_m[:, None] < left_m) & (in_k[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(in_k[:, None] < left) & (in_n[None, :] < left_n), other=0.0)
        sums += tl.dot(a.to(tl.float32), b.to(tl.float32))
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
        left -= BLOCK_K
    c_ptrs = c_ptr + (m * BLOCK_M + in_m)[:, None] * N + (n * BLOCK_N + in_n)[None, :]
    tl.store(c_ptrs, sums.to(c_ptr.dtype.element_ty), mask=(in_m[:, None] < left_m) & (in_n[None, :] < left_n))


@triton.jit
def tile_index(program, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    tiles_n = (N + BLOCK_N - 1) // BLOCK_N
    above = program // (GROUP_M * tiles_n) * GROUP_M
    height = tl.minimum((M + BLOCK_M - 1) // BLOCK_M - above, GROUP_M)
    rest = program - above * tiles_n
    return above + rest % height, rest // height
