"""Calls of tasks 3 and 4: RMS norm of rows, and its backward pass with few programs and a sum of their shares."""

from __future__ import annotations

from typing import Any

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.triton.launches import (
    blocks,
    launch_recorded,
    power_of_two,
    result_kind,
    tensors,
    unwritten,
)


def forward(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `rms_norm_kernel`: the norm, r of each row, and what it did to memory."""
    t = tensors(arrays)
    x, (rows, columns) = t["x"], t["x"].shape
    outputs = {"y_ptr": unwritten(*x.shape, dtype=result_kind(arrays, x.dtype)), "r_ptr": unwritten(rows)}
    inputs = (x, t["w"], *outputs.values(), columns, float(arrays["eps"]))
    return launch_recorded(artifact, "rms_norm_kernel", rows, *inputs, outputs=outputs, BLOCK=power_of_two(columns))


def backward(artifact: Any, arrays: Arrays) -> Arrays:
    """dx, the shares of as many programs as `programs` says, and dw from them."""
    t, programs = tensors(arrays), int(arrays["programs"])
    (rows, columns), kind = t["x"].shape, result_kind(arrays, t["x"].dtype)
    outputs = {"dx_ptr": unwritten(rows, columns, dtype=kind), "share_ptr": unwritten(programs, columns)}
    inputs = (t["dy"], t["x"], t["w"], t["r"], *outputs.values(), rows, columns)
    first = launch_recorded(
        artifact, "rms_norm_backward_kernel", programs, *inputs, outputs=outputs, BLOCK=power_of_two(columns)
    )
    dw = unwritten(columns, dtype=kind)
    then = (outputs["share_ptr"], dw, programs, columns)
    each = int(arrays["BLOCK_of_sum_shares"])
    grid = blocks(columns, each)
    second = launch_recorded(artifact, "sum_shares_kernel", grid, *then, outputs={"dw_ptr": dw}, BLOCK=each)
    return {**first, **second}
