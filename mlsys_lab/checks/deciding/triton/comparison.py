"""How near lab 04's attention has to come, and what a learner is told of a case: its arrays, numbers of the launch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlsys_lab.checks.deciding.traced import agree
from mlsys_lab.checks.learner.spec import Arrays, Mismatch

SMALL = 8
"""Arrays of real numbers with so many elements at most are shown whole."""


def agree_nearly(got: Arrays, expected: Arrays) -> Mismatch | None:
    """None where attention is right to three times the usual tolerance and its launch does nothing wrong.

    A score of 150 in float32 is off by 1e-5, and its exponential by as large a part; scores as powers of two are
    rounded once more.
    """
    return agree(got, expected, scale=3.0)


def describe_arrays(**constants: int) -> Callable[[Arrays], str]:
    """A check's `describe`: a line for each array, then numbers, and constants of the launch."""

    def describe(arrays: Arrays) -> str:
        lines = [f"{name}: {_array(array)}" for name, array in arrays.items() if array.ndim]
        numbers = [f"{name} = {array.item():g}" for name, array in arrays.items() if not array.ndim]
        numbers += [f"{name} = {value}" for name, value in constants.items()]
        return "\n".join([*lines, *([", ".join(numbers)] if numbers else [])])

    return describe


def _array(array: np.ndarray) -> str:
    if array.size > SMALL and array.dtype.kind == "f":
        return f"{array.dtype.name} of shape {array.shape}"
    values = np.array2string(array, precision=4, separator=", ").replace("\n", "")
    return f"{array.dtype.name} of shape {array.shape} {values}"
