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
    code = check.ask if check.describe is None else check.describe(arrays)
    if check.describe is None:
        asked = _names_in(check.ask)
        code = "\n".join([*(write_input(name, array) for name, array in arrays.items() if name in asked), code])
    if "given" in _names_in(code):
        return f'given = check.inputs("{check.name}", "{case.name}")\n{code}'
    return code


def _names_in(code: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}


def write_input(name: str, array: np.ndarray) -> str:
    """Code that makes an input: a number of Python, or a torch.Tensor of its dtype, written out where it is small."""
    if array.ndim and not _is_few(array):
        return f'{name} = torch.from_numpy(given["{name}"])'
    return f"{name} = {write_value(array)}"


def write_value(array: np.ndarray) -> str:
    """An expression that makes an array again: a number of Python, or a torch.Tensor of its dtype, all written out."""
    return f"torch.tensor({_write_nested(array)}, dtype=torch.{array.dtype})" if array.ndim else repr(array.item())


def _is_few(array: np.ndarray) -> bool:
    """Whether all that there is to know of an array can be read off a short list."""
    return array.size <= FEW and (array.size > 0 or array.ndim == 1)


def _write_nested(array: np.ndarray) -> str:
    """An array as nested lists of the shortest numbers that make it again."""
    values: list[Any] = list(array)
    written = map(_write_nested, values) if array.ndim > 1 else map(str, values)
    return f"[{', '.join(written)}]"
