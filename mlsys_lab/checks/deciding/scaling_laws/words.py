"""What lab 06 says of a case that failed: its inputs as the code that makes them, where they are few."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlsys_lab.checks.learner.spec import Arrays

FEW = 12
"""Longest column that is shown."""
LAW = ("E", "A", "B", "alpha", "beta")


def number(value: float) -> str:
    """Six digits, as Python writes them in a notebook that has NumPy as np."""
    return "np.nan" if np.isnan(value) else f"{value:.6g}"


def describe_calls(*calls: str) -> Callable[[Arrays], str]:
    """A check's `describe`: the law if there is one, columns that are short, and calls whose {names} are numbers."""

    def describe(arrays: Arrays) -> str:
        numbers = {name: number(array.item()) for name, array in arrays.items() if array.ndim == 0}
        columns = {name: array.tolist() for name, array in arrays.items() if array.ndim == 1}
        if any(len(column) > FEW for column in columns.values()):
            columns = {}
        law = "law = Law({})".format(", ".join(f"{name}={numbers[name]}" for name in LAW)) if "alpha" in numbers else ""
        made = [f"{name} = np.array([{', '.join(map(number, column))}])" for name, column in columns.items()]
        return "\n".join([*([law] if law else []), *made, *(call.format(**numbers) for call in calls)])

    return describe
