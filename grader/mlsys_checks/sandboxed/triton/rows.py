"""Calls of tasks 1 and 2: one elementwise kernel, and softmax with a program a row."""

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


def silu_mul(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `silu_mul_kernel`: its result, silu(gate) · up, who stored it, and what it did to memory."""
    t = tensors(arrays)
    gate, block = t["gate"], int(arrays["BLOCK"])
    y, size = unwritten(*gate.shape, dtype=result_kind(arrays, gate.dtype)), gate.numel()
    inputs = (gate, t["up"], y, size)
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
    y, (rows, columns) = unwritten(*x.shape, dtype=result_kind(arrays, x.dtype)), x.shape
    return launch_recorded(
        artifact, "softmax_kernel", rows, x, y, columns, outputs={"y_ptr": y}, BLOCK=power_of_two(columns)
    )
