"""Calls of tasks 1 and 2: one elementwise kernel, and softmax with a program a row."""

from __future__ import annotations

from typing import Any

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.triton.launches import blocks, launch_recorded, power_of_two, tensors, unwritten


def silu_mul(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `silu_mul_kernel`: its result, silu(gate) · up, who stored it, and what it did to memory."""
    t = tensors(arrays)
    y, size, block = unwritten(*t["gate"].shape, dtype=t["gate"].dtype), t["gate"].numel(), int(arrays["BLOCK"])
    inputs = (t["gate"], t["up"], y, size)
    return launch_recorded(
        artifact,
        "silu_mul_kernel",
        blocks(size, block),
        *inputs,
        outputs={"y_ptr": y},
        writers_of="y_ptr",
        BLOCK=block,
    )


def softmax(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `softmax_kernel`: the softmax of each row, and what it did to memory."""
    x = tensors(arrays)["x"]
    y, (rows, columns) = unwritten(*x.shape, dtype=x.dtype), x.shape
    return launch_recorded(
        artifact, "softmax_kernel", rows, x, y, columns, outputs={"y_ptr": y}, BLOCK=power_of_two(columns)
    )
