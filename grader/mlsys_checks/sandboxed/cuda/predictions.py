"""Calls of task 3: what the learner predicts of two naive kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import count, parts

PREDICTED = {
    "predict_transpose": ("sectors of x", "sectors of y"),
    "predict_matmul": ("sectors of a", "sectors of b", "sectors of c"),
    "predict_loads": ("loads from a", "loads from b"),
}
"""What each function predicts, in its order. An array by a function's name holds calls of it, a row of sizes each."""


def predict(artifact: Any, arrays: Arrays) -> Arrays:
    """Every call that is asked for: each count as a text, by its name and its call."""
    found = {}
    for function, sizes in arrays.items():
        if function not in PREDICTED:
            continue
        for row in sizes.tolist():
            got = parts(function, getattr(artifact, function)(*row), *PREDICTED[function])
            for name, one in zip(name_answers(function, row), got, strict=True):
                found[name] = count(name, one)
    return found


def write_calls(function: str, sizes: np.ndarray) -> list[str]:
    """Calls of a function, as code."""
    return [f"{function}({', '.join(map(str, row))})" for row in sizes.tolist()]


def name_answers(function: str, row: list[int]) -> list[str]:
    """Names of what one call predicts."""
    (call,) = write_calls(function, np.array([row]))
    return [f"{part} in {call}" for part in PREDICTED[function]]
