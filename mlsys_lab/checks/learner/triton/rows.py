"""Calls of tasks 1 and 2: one elementwise kernel, and softmax with a program a row."""

from __future__ import annotations

from typing import Any

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.triton.launches import blocks, launch_recorded, power_of_two, tensors, unwritten

ELEMENTS = 16
"""Elements of one program of the elementwise kernel."""


def silu_mul(artifact: Any, arrays: Arrays) -> Arrays:
    """silu(gate) · up."""
    t = tensors(arrays)
    y, size = unwritten(*t["gate"].shape, dtype=t["gate"].dtype), t["gate"].numel()
    inputs = (t["gate"], t["up"], y, size)
    return launch_recorded(
        artifact, "silu_mul_kernel", blocks(size, ELEMENTS), *inputs, outputs={"y_ptr": y}, BLOCK=ELEMENTS
    )


def softmax(artifact: Any, arrays: Arrays) -> Arrays:
    """Softmax of each row."""
    x = tensors(arrays)["x"]
    y, (rows, columns) = unwritten(*x.shape, dtype=x.dtype), x.shape
    return launch_recorded(
        artifact, "softmax_kernel", rows, x, y, columns, outputs={"y_ptr": y}, BLOCK=power_of_two(columns)
    )
