"""Layer norm and RMS norm of rows in Triton, and their backward passes. N rows of D elements, contiguous.

Letters: w and b are weight and bias, (D,); r = 1 / √(mean of squares + ε), of x for RMS norm, of x − μ for layer norm;
x̂ = x·r or (x − μ)·r; y = x̂·w (+ b). With g = dy·w, over a row's D elements (for RMS norm without the mean of g):

    dx = r · (g − mean(g) − x̂ · mean(g·x̂))        dw = Σ over rows of dy·x̂        db = Σ over rows of dy

A program stays for several rows, so that it reads w and b once and adds up its share of dw and db in registers. The
shares, one row of float32 a program, are added by a second kernel: in the same order at every run, without atomics.
With two stages the next rows are on their way to shared memory while these are worked on.
"""

from __future__ import annotations

from mlsys_lab.kernels.triton_language import tl, triton


@triton.jit
def rows_at(first, columns, N, D, ROWS: tl.constexpr):
    """Numbers of ROWS rows from `first`, which of them exist, where their elements lie, and which of those exist."""
    rows = first + tl.arange(0, ROWS)
    at = rows.to(tl.int64)[:, None] * D + columns[None, :]
    return rows, rows < N, at, (rows < N)[:, None] & (columns < D)[None, :]


@triton.jit
def of_columns(ptr, columns, D):
    """Load a weight or bias as float32, (1, BLOCK). Every program reads it, so it is kept in the caches."""
    return tl.load(ptr + columns, mask=columns < D, other=0.0, eviction_policy="evict_last").to(tl.float32)[None, :]


@triton.jit
def forward_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, r_ptr, N, D, eps,
    CENTRED: tl.constexpr, KEEP: tl.constexpr, STAGES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write y, r, and μ where the norm is CENTRED (layer norm). KEEP: w and b stay in registers from row to row."""
    columns = tl.arange(0, BLOCK)
    if KEEP:
        w = of_columns(w_ptr, columns, D)
        b = of_columns(b_ptr, columns, D) if CENTRED else 0.0
    for first in tl.range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS, num_stages=STAGES):
        rows, exists, at, inside = rows_at(first, columns, N, D, ROWS)
        x = tl.load(x_ptr + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        if CENTRED:
            mean = tl.sum(x, axis=1) / D
            tl.store(mean_ptr + rows, mean, mask=exists)
            x = tl.where(inside, x - mean[:, None], 0.0)
        r = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)
        tl.store(r_ptr + rows, r, mask=exists)
        if not KEEP:
            w = of_columns(w_ptr, columns, D)
            b = of_columns(b_ptr, columns, D) if CENTRED else 0.0
        y = x * r[:, None] * w + b
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(
    dy_ptr, x_ptr, w_ptr, mean_ptr, r_ptr, dx_ptr, dw_ptr, db_ptr, N, D,
    CENTRED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write dx, and this program's share of dw and db, rows of (programs, D)."""
    columns = tl.arange(0, BLOCK)
    w = of_columns(w_ptr, columns, D)
    dw = tl.zeros((ROWS, BLOCK), tl.float32)
    db = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS, num_stages=2):
        rows, exists, at, inside = rows_at(first, columns, N, D, ROWS)
        r = tl.load(r_ptr + rows, mask=exists, other=0.0)[:, None]
        mean = tl.load(mean_ptr + rows, mask=exists, other=0.0)[:, None] if CENTRED else 0.0
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
        g = dy * w
        x_hat = (x - mean) * r
        inner = tl.sum(g * x_hat, axis=1)[:, None] / D
        outer = tl.sum(g, axis=1)[:, None] / D if CENTRED else 0.0
        dx = r * (g - outer - x_hat * inner)
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        dw += dy * x_hat
        if CENTRED:
            db += dy
    share = tl.program_id(0) * D + columns
    tl.store(dw_ptr + share, tl.sum(dw, axis=0), mask=columns < D)
    if CENTRED:
        tl.store(db_ptr + share, tl.sum(db, axis=0), mask=columns < D)


@triton.jit
def part_of_row(dy_ptr, x_ptr, w_ptr, row_at, columns, mean, r, D):
    """dy, x̂ and g of a part of one row."""
    inside = columns < D
    x = tl.load(x_ptr + row_at + columns, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + row_at + columns, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + columns, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    return dy, (x - mean) * r, dy * w


@triton.jit
def wide_backward_kernel(
    dy_ptr, x_ptr, w_ptr, mean_ptr, r_ptr, dx_ptr, dw_ptr, db_ptr, N, D,
    CENTRED: tl.constexpr, BIAS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write dx and shares of dw and db for rows so wide that dw fills the registers: each comes twice, in parts.

    The second time it comes from the caches. The shares of dw (and of db, if BIAS) are tuples of PARTS blocks.
    """
    dw = ()
    db = ()
    for _part in tl.static_range(PARTS):
        dw += (tl.zeros((BLOCK,), tl.float32),)  # type: ignore[assignment]
        db += (tl.zeros((BLOCK,), tl.float32),)  # type: ignore[assignment]
    for row in tl.range(tl.program_id(0), N, tl.num_programs(0)):
        row_at = tl.cast(row, tl.int64) * D
        r = tl.load(r_ptr + row)
        mean = tl.load(mean_ptr + row) if CENTRED else 0.0
        inner = tl.zeros((BLOCK,), tl.float32)
        outer = tl.zeros((BLOCK,), tl.float32)
        for start in tl.range(0, D, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            dy, x_hat, g = part_of_row(dy_ptr, x_ptr, w_ptr, row_at, columns, mean, r, D)
            inner += g * x_hat
            outer += g
        mean_inner = tl.sum(inner, axis=0) / D
        mean_outer = tl.sum(outer, axis=0) / D if CENTRED else 0.0
        more_dw = ()
        more_db = ()
        for part in tl.static_range(PARTS):
            columns = part * BLOCK + tl.arange(0, BLOCK)
            dy, x_hat, g = part_of_row(dy_ptr, x_ptr, w_ptr, row_at, columns, mean, r, D)
            dx = r * (g - mean_outer - x_hat * mean_inner)
            tl.store(dx_ptr + row_at + columns, dx.to(dx_ptr.dtype.element_ty), mask=columns < D)
            more_dw += (dw[part] + dy * x_hat,)  # type: ignore[assignment]
            more_db += (db[part] + dy if BIAS else db[part],)  # type: ignore[assignment]
        dw = more_dw
        db = more_db
    for part in tl.static_range(PARTS):
        columns = part * BLOCK + tl.arange(0, BLOCK)
        tl.store(dw_ptr + tl.program_id(0) * D + columns, dw[part], mask=columns < D)
        if BIAS:
            tl.store(db_ptr + tl.program_id(0) * D + columns, db[part], mask=columns < D)


@triton.jit
def sum_rows_kernel(shares_ptr, dw_ptr, db_ptr, P, D, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Sum P rows in float32: dw of the first P rows and, along the grid's y, db of the next P."""
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    which = tl.program_id(1)
    shares_ptr += which.to(tl.int64) * P * D
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in tl.range(0, P, ROWS):
        _, _, at, inside = rows_at(first, columns, P, D, ROWS)
        total += tl.load(shares_ptr + at, mask=inside, other=0.0).to(tl.float32)
    found = tl.sum(total, axis=0)
    if which == 0:
        tl.store(dw_ptr + columns, found.to(dw_ptr.dtype.element_ty), mask=columns < D)
    else:
        tl.store(db_ptr + columns, found.to(db_ptr.dtype.element_ty), mask=columns < D)
