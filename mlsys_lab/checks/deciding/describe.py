"""What a learner is told of a case that failed: its inputs as the code that makes them, where they are few."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from mlsys_lab.checks.learner.spec import Arrays

FEW = 12
"""Longest column that is shown."""


def write_rounded(value: float) -> str:
    """A number with six digits, as code in a notebook that has NumPy as np."""
    return "np.nan" if np.isnan(value) else f"{value:.6g}"


def write_columns(arrays: Arrays) -> list[str]:
    """Lines of code that make a case's columns; none where one of them is long."""
    columns = {name: array.tolist() for name, array in arrays.items() if array.ndim == 1}
    if any(len(column) > FEW for column in columns.values()):
        return []
    return [f"{name} = np.array([{', '.join(map(write_rounded, column))}])" for name, column in columns.items()]


def describe_calls(
    *calls: str,
    given: Callable[[Arrays], Iterable[str]] = write_columns,
    write: Callable[[float], str] = write_rounded,
) -> Callable[[Arrays], str]:
    """A check's `describe`: code that makes the inputs, and calls in which each {name} is a number of the case.

    given: lines of code that make a case's inputs. write: a number as code.
    """

    def describe(arrays: Arrays) -> str:
        numbers = {name: write(array.item()) for name, array in arrays.items() if array.ndim == 0}
        return "\n".join([*given(arrays), *(call.format(**numbers) for call in calls)])

    return describe
