"""Layer norm and RMS norm of rows in Triton, and their backward passes. N rows of D elements, contiguous.

Letters: w and b are weight and bias, (D,); r = 1 / √(mean of squares + ε), of x for RMS norm, of x − μ for layer norm;
x̂ = x·r or (x − μ)·r; y = x̂·w (+ b). With g = dy·w, over a row's D elements (for RMS norm without the mean of g):

    dx = r · (g − mean(g) − x̂ · mean(g·x̂))        dw = Σ over rows of dy·x̂        db = Σ over rows of dy

A persistent program loops over several rows: it loads w and b once and accumulates partial sums of dw and db in
registers. A second kernel adds the partial sums, one float32 row per program, in the same order at every run, without
atomics. With two stages, the next rows are loaded to shared memory while the current ones are computed.
"""

from __future__ import annotations

from mlsys_lab.kernels.triton_language import tl, triton


@triton.jit
def row_offsets(first, columns, N, D, ROWS: tl.constexpr):
    """Indices and mask of ROWS rows from `first` on, (ROWS,), and offsets and mask of their elements, (ROWS, BLOCK)."""
    rows = first + tl.arange(0, ROWS)
    offsets = rows.to(tl.int64)[:, None] * D + columns[None, :]
    return rows, rows < N, offsets, (rows < N)[:, None] & (columns < D)[None, :]


@triton.jit
def load_columns(ptr, columns, D):
    """Load a weight or bias as float32, (1, BLOCK). Every program loads it, so it stays in the caches."""
    return tl.load(ptr + columns, mask=columns < D, other=0.0, eviction_policy="evict_last").to(tl.float32)[None, :]


@triton.jit
def forward_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, r_ptr, N, D, eps,
    CENTRED: tl.constexpr, CACHE_WEIGHTS: tl.constexpr, STAGES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store y, r and, for layer norm (CENTRED), μ. CACHE_WEIGHTS: keep w and b in registers."""
    columns = tl.arange(0, BLOCK)
    if CACHE_WEIGHTS:
        w = load_columns(w_ptr, columns, D)
        b = load_columns(b_ptr, columns, D) if CENTRED else 0.0
    for first in tl.range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS, num_stages=STAGES):
        rows, row_mask, offsets, mask = row_offsets(first, columns, N, D, ROWS)
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        if CENTRED:
            mean = tl.sum(x, axis=1) / D
            tl.store(mean_ptr + rows, mean, mask=row_mask)
            x = tl.where(mask, x - mean[:, None], 0.0)
        r = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)
        tl.store(r_ptr + rows, r, mask=row_mask)
        if not CACHE_WEIGHTS:
            w = load_columns(w_ptr, columns, D)
            b = load_columns(b_ptr, columns, D) if CENTRED else 0.0
        y = x * r[:, None] * w + b
        tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def backward_kernel(
    dy_ptr, x_ptr, w_ptr, mean_ptr, r_ptr, dx_ptr, dw_ptr, db_ptr, N, D,
    CENTRED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store dx and this program's partial sums of dw and db, a row each of (programs, D)."""
    columns = tl.arange(0, BLOCK)
    w = load_columns(w_ptr, columns, D)
    dw = tl.zeros((ROWS, BLOCK), tl.float32)
    db = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS, num_stages=2):
        rows, row_mask, offsets, mask = row_offsets(first, columns, N, D, ROWS)
        r = tl.load(r_ptr + rows, mask=row_mask, other=0.0)[:, None]
        mean = tl.load(mean_ptr + rows, mask=row_mask, other=0.0)[:, None] if CENTRED else 0.0
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        g = dy * w
        x_hat = (x - mean) * r
        inner = tl.sum(g * x_hat, axis=1)[:, None] / D
        outer = tl.sum(g, axis=1)[:, None] / D if CENTRED else 0.0
        dx = r * (g - outer - x_hat * inner)
        tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        dw += dy * x_hat
        if CENTRED:
            db += dy
    offset = tl.program_id(0) * D + columns
    tl.store(dw_ptr + offset, tl.sum(dw, axis=0), mask=columns < D)
    if CENTRED:
        tl.store(db_ptr + offset, tl.sum(db, axis=0), mask=columns < D)


@triton.jit
def load_chunk(dy_ptr, x_ptr, w_ptr, row_offset, columns, mean, r, D):
    """Load dy and compute x̂ and g for a chunk of one row."""
    mask = columns < D
    x = tl.load(x_ptr + row_offset + columns, mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + row_offset + columns, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + columns, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
    return dy, (x - mean) * r, dy * w


@triton.jit
def wide_backward_kernel(
    dy_ptr, x_ptr, w_ptr, mean_ptr, r_ptr, dx_ptr, dw_ptr, db_ptr, N, D,
    CENTRED: tl.constexpr, BIAS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store dx and partial sums of dw and db for rows so wide that dw fills the registers: two passes over each row.

    The second pass is served by the caches. The sums of dw (and of db, if BIAS) are tuples of CHUNKS blocks.
    """
    dw = ()
    db = ()
    for _chunk in tl.static_range(CHUNKS):
        dw += (tl.zeros((BLOCK,), tl.float32),)  # type: ignore[assignment]
        db += (tl.zeros((BLOCK,), tl.float32),)  # type: ignore[assignment]
    for row in tl.range(tl.program_id(0), N, tl.num_programs(0)):
        row_offset = tl.cast(row, tl.int64) * D
        r = tl.load(r_ptr + row)
        mean = tl.load(mean_ptr + row) if CENTRED else 0.0
        inner = tl.zeros((BLOCK,), tl.float32)
        outer = tl.zeros((BLOCK,), tl.float32)
        for start in tl.range(0, D, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            dy, x_hat, g = load_chunk(dy_ptr, x_ptr, w_ptr, row_offset, columns, mean, r, D)
            inner += g * x_hat
            outer += g
        mean_inner = tl.sum(inner, axis=0) / D
        mean_outer = tl.sum(outer, axis=0) / D if CENTRED else 0.0
        new_dw = ()
        new_db = ()
        for chunk in tl.static_range(CHUNKS):
            columns = chunk * BLOCK + tl.arange(0, BLOCK)
            dy, x_hat, g = load_chunk(dy_ptr, x_ptr, w_ptr, row_offset, columns, mean, r, D)
            dx = r * (g - mean_outer - x_hat * mean_inner)
            tl.store(dx_ptr + row_offset + columns, dx.to(dx_ptr.dtype.element_ty), mask=columns < D)
            new_dw += (dw[chunk] + dy * x_hat,)  # type: ignore[assignment]
            new_db += (db[chunk] + dy if BIAS else db[chunk],)  # type: ignore[assignment]
        dw = new_dw
        db = new_db
    for chunk in tl.static_range(CHUNKS):
        columns = chunk * BLOCK + tl.arange(0, BLOCK)
        tl.store(dw_ptr + tl.program_id(0) * D + columns, dw[chunk], mask=columns < D)
        if BIAS:
            tl.store(db_ptr + tl.program_id(0) * D + columns, db[chunk], mask=columns < D)


@triton.jit
def sum_rows_kernel(partials_ptr, dw_ptr, db_ptr, P, D, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Sum P rows in float32: dw of the first P rows and, along the grid's y, db of the next P."""
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    which = tl.program_id(1)
    partials_ptr += which.to(tl.int64) * P * D
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in tl.range(0, P, ROWS):
        _, _, offsets, mask = row_offsets(first, columns, P, D, ROWS)
        total += tl.load(partials_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    column_sums = tl.sum(total, axis=0)
    if which == 0:
        tl.store(dw_ptr + columns, column_sums.to(dw_ptr.dtype.element_ty), mask=columns < D)
    else:
        tl.store(db_ptr + columns, column_sums.to(db_ptr.dtype.element_ty), mask=columns < D)
