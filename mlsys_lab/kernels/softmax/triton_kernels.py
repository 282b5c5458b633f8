"""Softmax of rows in Triton, and its backward pass. N rows of D elements, contiguous.

With m the row's maximum and s the sum of exp(x − m): y = exp(x − m) / s, and dx = y · (dy − Σ y·dy).
"""

from __future__ import annotations

from mlsys_lab.kernels.triton_language import tl, triton


@triton.jit
def row_offsets(first_row, N, D, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Offsets and mask of ROWS rows from `first_row` on, both (ROWS, BLOCK)."""
    rows = first_row + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    # 64-bit offsets: N·D may exceed 2³¹.
    offsets = rows.to(tl.int64)[:, None] * D + columns[None, :]
    return offsets, (rows < N)[:, None] & (columns < D)[None, :]


@triton.jit
def one_pass_kernel(x_ptr, y_ptr, N, D, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Softmax of full rows in registers: every element is loaded once and stored once."""
    offsets, mask = row_offsets(tl.program_id(0) * ROWS, N, D, ROWS, BLOCK)
    x = tl.load(x_ptr + offsets, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
    y = e * (1 / tl.sum(e, axis=1, keep_dims=True))
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def online_kernel(x_ptr, y_ptr, D, BLOCK: tl.constexpr):
    """Softmax of a row of any length, block by block: maximum and sum on the first pass, quotients on the second.

    When a block has a larger maximum, the sum so far is rescaled to it (Milakov and Gimelshein, 2018, algorithm 3).
    """
    row = tl.program_id(0).to(tl.int64) * D
    m = -float("inf")
    s = 0.0
    for start in tl.range(0, D, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + columns, mask=columns < D, other=-float("inf")).to(tl.float32)
        new_max = tl.maximum(m, tl.max(x, axis=0))
        shift = tl.where(new_max == -float("inf"), 0.0, new_max)  # −inf − (−inf) would be NaN
        s = s * tl.exp(m - shift) + tl.sum(tl.exp(x - shift), axis=0)
        m = new_max
    shift = tl.where(m == -float("inf"), 0.0, m)
    scale = 1 / s
    for start in tl.range(0, D, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + columns, mask=columns < D).to(tl.float32)
        y = tl.exp(x - shift) * scale
        tl.store(y_ptr + row + columns, y.to(y_ptr.dtype.element_ty), mask=columns < D)


@triton.jit
def one_pass_backward_kernel(dy_ptr, y_ptr, dx_ptr, N, D, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Gradient of softmax from full rows of y and dy in registers."""
    offsets, mask = row_offsets(tl.program_id(0) * ROWS, N, D, ROWS, BLOCK)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    dx = y * (dy - tl.sum(y * dy, axis=1, keep_dims=True))
    tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit
def online_backward_kernel(dy_ptr, y_ptr, dx_ptr, D, BLOCK: tl.constexpr):
    """Gradient of softmax for a row of any length: Σ y·dy on the first pass, dx on the second."""
    row = tl.program_id(0).to(tl.int64) * D
    inner = 0.0
    for start in tl.range(0, D, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        y = tl.load(y_ptr + row + columns, mask=columns < D, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row + columns, mask=columns < D, other=0.0).to(tl.float32)
        inner += tl.sum(y * dy, axis=0)
    for start in tl.range(0, D, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        y = tl.load(y_ptr + row + columns, mask=columns < D).to(tl.float32)
        dy = tl.load(dy_ptr + row + columns, mask=columns < D).to(tl.float32)
        tl.store(dx_ptr + row + columns, (y * (dy - inner)).to(dx_ptr.dtype.element_ty), mask=columns < D)
