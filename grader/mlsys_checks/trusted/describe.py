"""What a learner is told of a case that failed: its inputs as the code that makes them.

Code may take an input from `given`, which `mlsys_checks.trusted.snippet` then defines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays

FEW = 12
"""Longest column that is written out; a longer one is taken from `given`."""


def write_exact(value: float) -> str:
    """Code that makes this very number again, or NaN, in a notebook that has NumPy as np."""
    return "np.nan" if np.isnan(value) else repr(value)


def write_columns(arrays: Arrays) -> list[str]:
    """Lines of code that make a case's columns."""
    return [_write_column(name, array) for name, array in arrays.items() if array.ndim == 1]


def _write_column(name: str, column: np.ndarray) -> str:
    if len(column) > FEW:
        return f'{name} = given["{name}"]'
    return f"{name} = np.array([{', '.join(map(write_exact, column.tolist()))}])"


def describe_calls(*calls: str, given: Callable[[Arrays], Iterable[str]] = write_columns) -> Callable[[Arrays], str]:
    """A check's `describe`: code that makes the inputs, and calls in which each {name} is a number of the case.

    given: lines of code that make a case's inputs.
    """

    def describe(arrays: Arrays) -> str:
        numbers = {name: write_exact(array.item()) for name, array in arrays.items() if array.ndim == 0}
        return "\n".join([*given(arrays), *(call.format(**numbers) for call in calls)])

    return describe
