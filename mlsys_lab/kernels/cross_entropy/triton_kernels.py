"""Cross-entropy of rows of logits in Triton, block by block over the vocabulary. N rows of V logits, contiguous.

With t a row's target and ℓ = log Σ exp(x): loss = ℓ − x[t], and d loss / dx = exp(x − ℓ) − [column is t]. A row whose
target is `ignored` has loss and gradient 0. A target out of range gives NaN: to raise an error, the host would
have to wait for the GPU.
"""

from __future__ import annotations

from mlsys_lab.kernels.triton_language import tl, triton


@triton.jit
def log_sum_exp(row_ptr, V, BLOCK: tl.constexpr):
    """ℓ = log Σ exp(x) of one row, each element loaded once: a running maximum and sum, as in online softmax."""
    m = -float("inf")
    s = 0.0
    for start in tl.range(0, V, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + columns, mask=columns < V, other=-float("inf")).to(tl.float32)
        new_max = tl.maximum(m, tl.max(x, axis=0))
        shift = tl.where(new_max == -float("inf"), 0.0, new_max)  # −inf − (−inf) would be NaN
        s = s * tl.exp(m - shift) + tl.sum(tl.exp(x - shift), axis=0)
        m = new_max
    return m + tl.log(s)


@triton.jit
def row_loss(row_ptr, target, log_sum, V):
    """Loss ℓ − x[t] of one row, or NaN if t is out of range; x[t] is loaded a second time."""
    in_range = (target >= 0) & (target < V)
    x = tl.load(row_ptr + target, mask=in_range, other=float("nan")).to(tl.float32)
    return log_sum - x


@triton.jit
def store_gradient(x_ptr, dx_ptr, columns, target, log_sum, factor, V):
    """Store factor · d loss / dx for a block of columns of one row."""
    x = tl.load(x_ptr + columns, mask=columns < V, other=-float("inf")).to(tl.float32)
    dx = factor * (tl.exp(x - log_sum) - tl.where(columns == target, 1.0, 0.0))
    tl.store(dx_ptr + columns, dx.to(dx_ptr.dtype.element_ty), mask=columns < V)


@triton.jit
def loss_kernel(logits_ptr, targets_ptr, losses_ptr, log_sums_ptr, V, ignored, BLOCK: tl.constexpr):
    """Store loss and ℓ of each row; an ignored row is not loaded."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row)
    loss = 0.0
    log_sum = 0.0
    if target != ignored:
        log_sum = log_sum_exp(logits_ptr + row * V, V, BLOCK)
        loss = row_loss(logits_ptr + row * V, target, log_sum, V)
    tl.store(losses_ptr + row, loss)
    tl.store(log_sums_ptr + row, log_sum)


@triton.jit
def gradient_kernel(
    logits_ptr, targets_ptr, log_sums_ptr, d_losses_ptr, d_logits_ptr, V, ignored, BLOCK: tl.constexpr
):  # fmt: skip
    """Store the logits' gradient from ℓ, one program per row and block of columns; each logit is loaded once."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target = tl.load(targets_ptr + row)
    d_row_ptr = d_logits_ptr + row * V
    if target == ignored:
        tl.store(d_row_ptr + columns, tl.zeros((BLOCK,), d_logits_ptr.dtype.element_ty), mask=columns < V)
    else:
        log_sum, factor = tl.load(log_sums_ptr + row), tl.load(d_losses_ptr + row)
        store_gradient(logits_ptr + row * V, d_row_ptr, columns, target, log_sum, factor, V)


@triton.jit
def in_place_kernel(logits_ptr, targets_ptr, losses_ptr, factor_ptr, V, ignored, BLOCK: tl.constexpr):
    """Store each row's loss and overwrite its logits by factor · d loss / dx: two loads, one store, one matrix."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row)
    row_ptr = logits_ptr + row * V
    loss = 0.0
    if target == ignored:
        for start in tl.range(0, V, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            tl.store(row_ptr + columns, tl.zeros((BLOCK,), logits_ptr.dtype.element_ty), mask=columns < V)
    else:
        log_sum = log_sum_exp(row_ptr, V, BLOCK)
        loss = row_loss(row_ptr, target, log_sum, V)
        tl.debug_barrier()  # every thread has loaded x[t] before one of them overwrites it
        factor = tl.load(factor_ptr)
        for start in tl.range(0, V, BLOCK):
            store_gradient(row_ptr, row_ptr, start + tl.arange(0, BLOCK), target, log_sum, factor, V)
    tl.store(losses_ptr + row, loss)
