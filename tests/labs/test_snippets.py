"""A public case is shown as code that runs: on the reference it gives what the check's own call gives."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from mlsys_lab.checks.deciding.snippet import write_snippet
from mlsys_lab.checks.deciding.verdict import draw_inputs, public_inputs
from mlsys_lab.checks.learner.spec import Check
from mlsys_lab.checks.live import LiveChecks
from mlsys_lab.checks.runner import PUBLIC_SEED
from tests.labs.harness import LabUnderTest, labs, module_of

SHOWN = [(lab, check) for lab in labs() for check in lab.checks.checks if check.ask]


@cache
def reference_of(lab: LabUnderTest) -> ModuleType:
    return module_of(lab.reference, "reference.ipynb")


def value_of(code: str, names: dict[str, Any]) -> Any:
    """Run code as a cell of a notebook: the value of its last line."""
    *before, last = ast.parse(code).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(before, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def leaves(value: Any) -> Iterator[np.ndarray]:
    """The numbers and arrays of a nested value; what is None, a gradient that was not asked for, left out."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from leaves(one)
    elif value is not None:
        yield value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def occurs(leaf: np.ndarray, arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether one of the arrays is the leaf, or holds it."""
    fitting = (array for array in arrays.values() if leaf.shape in ((), array.shape))
    alike = (np.isclose(array, leaf, rtol=1e-5, atol=1e-6) for array in fitting)
    return any(same.all() if leaf.ndim else same.any() for same in alike)


@pytest.mark.parametrize(("lab", "check"), SHOWN, ids=[f"{lab.info.topic}: {check.name}" for lab, check in SHOWN])
def test_the_code_of_a_public_case_gives_what_is_asked(lab: LabUnderTest, check: Check) -> None:
    artifact = reference_of(lab)
    for case in check.cases:
        if case.hidden:
            continue
        inputs = public_inputs(draw_inputs(check, case, PUBLIC_SEED))
        code = write_snippet(check, case, inputs)
        names = {**vars(artifact), "check": LiveChecks(lab.checks, {})}
        found = list(leaves(value_of(code, names)))
        asked = check.run(artifact, inputs)
        assert found
        assert [leaf for leaf in found if not occurs(leaf, asked)] == [], code
