"""Calls of task 3: what the learner predicts of two naive kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.errors import InputError


def sectors(artifact: Any, arrays: Arrays) -> Arrays:
    """Sectors of the transpose, read and written, and of the matrix product, by array."""
    rows, columns = (int(arrays[name]) for name in ("rows", "columns"))
    m, n, k = (int(arrays[name]) for name in "mnk")
    moved = _wholes("predict_transpose", artifact.predict_transpose(rows, columns), 2)
    asked = _wholes("predict_matmul", artifact.predict_matmul(m, n, k), 3)
    return {
        "sectors of x, read by naive_transpose": moved[0],
        "sectors of y, written by naive_transpose": moved[1],
        "sectors of a, read by naive_matmul": asked[0],
        "sectors of b, read by naive_matmul": asked[1],
        "sectors of c, written by naive_matmul": asked[2],
    }


def loads(artifact: Any, arrays: Arrays) -> Arrays:
    """Elements loaded of both operands where a block shares what it loads."""
    m, n, k, side = (int(arrays[name]) for name in ("m", "n", "k", "side"))
    of_a, of_b = _wholes("predict_loads", artifact.predict_loads(m, n, k, side), 2)
    return {"loads from a": of_a, "loads from b": of_b}


def _wholes(name: str, got: Any, count: int) -> list[np.ndarray]:
    """The whole numbers of a tuple."""
    expected = f"a tuple of {count} whole numbers"
    if not isinstance(got, tuple) or len(got) != count:
        raise InputError(f"{name} gives something else", got=repr(got)[:80], expected=expected)
    if not all(isinstance(one, int | np.integer) and abs(int(one)) < 2**63 for one in got):
        told = "numbers are whole: divide by //" if any(isinstance(one, float) for one in got) else expected
        raise InputError(f"{name} gives no whole numbers", got=repr(got)[:80], expected=told)
    return [np.array(int(one), dtype=np.int64) for one in got]
