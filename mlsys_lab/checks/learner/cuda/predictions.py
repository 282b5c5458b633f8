"""Calls of task 3: what the learner predicts of two naive kernels."""

from __future__ import annotations

from typing import Any

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.values import parts, whole

SECTORS = (
    "sectors of x, read by naive_transpose",
    "sectors of y, written by naive_transpose",
    "sectors of a, read by naive_matmul",
    "sectors of b, read by naive_matmul",
    "sectors of c, written by naive_matmul",
)
LOADS = ("loads from a", "loads from b")


def sectors(artifact: Any, arrays: Arrays) -> Arrays:
    """Sectors of the transpose, read and written, and of the matrix product, by array."""
    rows, columns = (int(arrays[name]) for name in ("rows", "columns"))
    m, n, k = (int(arrays[name]) for name in "mnk")
    moved = parts("predict_transpose", artifact.predict_transpose(rows, columns), "sectors of x", "of y")
    asked = parts("predict_matmul", artifact.predict_matmul(m, n, k), "sectors of a", "of b", "of c")
    return {name: whole(name, got) for name, got in zip(SECTORS, (*moved, *asked), strict=True)}


def loads(artifact: Any, arrays: Arrays) -> Arrays:
    """Elements loaded of both operands where a block shares what it loads."""
    m, n, k, side = (int(arrays[name]) for name in ("m", "n", "k", "side"))
    loaded = parts("predict_loads", artifact.predict_loads(m, n, k, side), *LOADS)
    return {name: whole(name, got) for name, got in zip(LOADS, loaded, strict=True)}
