"""Write a failed case's inputs as code that creates them.

Code may take an input from `given`, which `mlsys_checks.trusted.snippet` defines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays

MAX_WRITTEN = 12
"""Longest column that is written out; a longer one is taken from `given`."""


def write_exact(value: float) -> str:
    """Code for exactly this number, or NaN, with NumPy as np."""
    return "np.nan" if np.isnan(value) else repr(value)


def write_columns(arrays: Arrays) -> list[str]:
    """Lines of code that create a case's columns."""
    return [_write_column(name, array) for name, array in arrays.items() if array.ndim == 1]


def _write_column(name: str, column: np.ndarray) -> str:
    if len(column) > MAX_WRITTEN:
        return f'{name} = given["{name}"]'
    return f"{name} = np.array([{', '.join(map(write_exact, column.tolist()))}])"


def describe_calls(*calls: str, given: Callable[[Arrays], Iterable[str]] = write_columns) -> Callable[[Arrays], str]:
    """A check's `describe`: code that creates the inputs, and calls in which each {name} is a number of the case.

    given: writes the lines that create a case's inputs.
    """

    def describe(arrays: Arrays) -> str:
        numbers = {name: write_exact(array.item()) for name, array in arrays.items() if array.ndim == 0}
        return "\n".join([*given(arrays), *(call.format(**numbers) for call in calls)])

    return describe
