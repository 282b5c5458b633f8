"""Write a public case as code to paste into the notebook: its inputs, and the check's calls."""

from __future__ import annotations

import ast
import re
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays, Case, Check

MAX_WRITTEN = 48
"""Entries of an array that are written out; a larger one comes from `check.inputs`."""


def write_snippet(check: Check, case: Case, arrays: Arrays) -> str:
    """Code for a public case with the public inputs `arrays`; "" if the check has none."""
    code = check.snippet if check.describe is None else check.describe(arrays)
    if check.describe is None:
        asked = _names_in(check.snippet)
        code = "\n".join(
            [*(f"{name} = {write_input(name, array)}" for name, array in arrays.items() if name in asked), code]
        )
    if "given" in _names_in(code):
        return f'given = check.inputs("{check.name}", "{case.name}")\n{code}'
    return code


def _names_in(code: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}


def write_input(name: str, array: np.ndarray) -> str:
    """An input as code: a Python number, or a torch.Tensor of its dtype, written out if small."""
    if not array.ndim:
        return re.sub("-?inf|nan", r'float("\g<0>")', repr(array.item()))
    if not _is_few(array):
        return f'torch.from_numpy(given["{name}"])'
    return f"torch.tensor({_write_nested(array)}, dtype=torch.{array.dtype})"


def _is_few(array: np.ndarray) -> bool:
    """Whether an array is small enough to be written out."""
    return array.size <= MAX_WRITTEN and (array.size > 0 or array.ndim == 1)


def _write_nested(array: np.ndarray) -> str:
    """An array as nested lists of exact numbers."""
    values: list[Any] = list(array)
    return f"[{', '.join(map(_write_nested if array.ndim > 1 else _write_number, values))}]"


def _write_number(number: Any) -> str:
    """A number as code: the shortest exact form, or torch's name for it."""
    return str(number) if np.isfinite(number) else re.sub("inf|nan", r"torch.\g<0>", str(number))
