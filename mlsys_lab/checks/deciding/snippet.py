"""A public case as code that can be pasted into the notebook and run: its inputs, and what is asked of them."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from mlsys_lab.checks.learner.spec import Arrays, Case, Check

FEW = 48
"""Most numbers of an array that are written out; a larger one comes from `check.inputs`."""


def write_snippet(check: Check, case: Case, arrays: Arrays) -> str:
    """Code for a public case, whose public inputs `arrays` are; "" where the check has none."""
    if check.describe is not None:
        return check.describe(arrays)
    names = {node.id for node in ast.walk(ast.parse(check.ask)) if isinstance(node, ast.Name)}
    lines, large = [], "given" in names
    for name, array in arrays.items():
        if name in names:
            large |= not _is_few(array)
            lines.append(f"{name} = {write_input(name, array)}")
    if large:
        lines.insert(0, f'given = check.inputs("{check.name}", "{case.name}")')
    return "\n".join([*lines, check.ask])


def write_input(name: str, array: np.ndarray) -> str:
    """An input as code: a number of Python, or a torch.Tensor of its dtype, written out where it is small."""
    if not array.ndim:
        return repr(array.item())
    if not _is_few(array):
        return f'torch.from_numpy(given["{name}"])'
    return f"torch.tensor({_write_nested(array)}, dtype=torch.{array.dtype})"


def _is_few(array: np.ndarray) -> bool:
    """Whether all that there is to know of an array can be read off a short list."""
    return array.size <= FEW and (array.size > 0 or array.ndim == 1)


def _write_nested(array: np.ndarray) -> str:
    """An array as nested lists of the shortest numbers that make it again."""
    values: list[Any] = list(array)
    written = map(_write_nested, values) if array.ndim > 1 else map(str, values)
    return f"[{', '.join(written)}]"
