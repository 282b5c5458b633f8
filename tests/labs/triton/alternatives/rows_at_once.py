"""Norms with x̂ written out otherwise, and sums that are kept as they come; a helper kernel loads a row."""


@triton.jit
def row_of(ptr, row, columns, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    return tl.load(ptr + row * columns + lanes, mask=lanes < columns, other=0.0).to(tl.float32)


@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, y_ptr, r_ptr, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x, w = row_of(x_ptr, row, columns, BLOCK), row_of(w_ptr, 0, columns, BLOCK)
    r = tl.rsqrt(tl.sum(x * x) / columns + eps)
    tl.store(r_ptr + row, r)
    lanes = tl.arange(0, BLOCK)
    tl.store(y_ptr + row * columns + lanes, (x * r * w).to(y_ptr.dtype.element_ty), mask=lanes < columns)


@triton.jit
def rms_norm_backward_kernel(dy_ptr, x_ptr, w_ptr, r_ptr, dx_ptr, share_ptr, rows, columns, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    w = row_of(w_ptr, 0, columns, BLOCK)
    share = tl.zeros([BLOCK], tl.float32)
    row = tl.program_id(0)
    while row < rows:
        x, dy = row_of(x_ptr, row, columns, BLOCK), row_of(dy_ptr, row, columns, BLOCK)
        r = tl.load(r_ptr + row)
        inner = tl.sum(dy * w * x)
        dx = r * dy * w - r * r * r * x * inner / columns
        tl.store(dx_ptr + row * columns + lanes, dx, mask=lanes < columns)
        share += dy * x * r
        row += tl.num_programs(0)
    tl.store(share_ptr + tl.program_id(0) * columns + lanes, share, mask=lanes < columns)


@triton.jit
def sum_shares_kernel(share_ptr, dw_ptr, programs, columns, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dw = tl.load(share_ptr + lanes, mask=lanes < columns)
    for p in range(1, programs):
        dw += tl.load(share_ptr + p * columns + lanes, mask=lanes < columns)
    tl.store(dw_ptr + lanes, dw, mask=lanes < columns)


@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    at = tl.program_id(0) * columns + lanes
    x = tl.load(x_ptr + at, mask=lanes < columns, other=float("-inf")).to(tl.float32)
    tl.store(y_ptr + at, tl.softmax(x), mask=lanes < columns)
