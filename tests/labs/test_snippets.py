"""A public case is shown as code that runs where the check stands, and asks what the check asks."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from mlsys_checks.live import LiveChecks
from mlsys_checks.runner import PUBLIC_SEED
from mlsys_checks.sandboxed.attempt import attempt
from mlsys_checks.sandboxed.ranks import run_on_threads
from mlsys_checks.sandboxed.spec import Arrays, Check
from mlsys_checks.sandboxed.values import decode_text
from mlsys_checks.trusted.snippet import write_snippet
from mlsys_checks.trusted.verdict import bind_call, draw_inputs, public_inputs, shown_inputs
from mlsys_lab.comm import Run
from tests.labs.harness import LabUnderTest, labs, module_of
from tests.sampling import sample

REWORKED = {"isoflop_refuses", "step_products", "cache"}
"""Checks whose call makes something else of the values than the arrays that hold them, or looks at views in time."""
CHECKS = {f"{lab.info.topic}: {check.name}": (lab, check) for lab in labs() for check in lab.checks.checks}


@cache
def reference_of(lab: LabUnderTest) -> ModuleType:
    return module_of(lab.reference, "reference.ipynb")


def names_at(lab: LabUnderTest, check: Check) -> dict[str, Any]:
    """What a solved notebook has defined when it comes to a check: exported cells, `check`, imports further up."""
    names = {**vars(reference_of(lab)), "check": LiveChecks(lab.checks, {})}
    for cell in lab.reference_notebook["cells"]:
        source = "".join(cell["source"])
        if source == f'check("{check.name}")':
            return names
        if cell["cell_type"] == "code" and not source.startswith("#| export"):
            imports = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(imports, []), "cell", "exec"), names)
    raise AssertionError(f"no cell for {check.name}")


def values_of(code: str, names: dict[str, Any]) -> list[Any]:
    """Run code as cells of a notebook: the values of its expressions, or the ValueError that a task may ask for."""
    values: list[Any] = []
    for node in ast.parse(code).body:
        if not isinstance(node, ast.Expr):
            exec(compile(ast.Module([node], []), "cell", "exec"), names)
            continue
        try:
            values.append(eval(compile(ast.Expression(node.value), "cell", "eval"), names))
        except ValueError as error:
            values.append(error)
    return values


def leaves(value: Any) -> Iterator[np.ndarray]:
    """The numbers and arrays of a nested value; words, and None, a gradient that was not asked for, are left out."""
    if isinstance(value, Run):
        value = value.results
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from leaves(one)
    elif value is not None and not isinstance(value, str):
        yield value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def occurs(leaf: np.ndarray, arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether one of the arrays is the leaf, or holds it."""
    fitting = (array for array in arrays.values() if leaf.shape in ((), array.shape))
    alike = (np.isclose(array, leaf, rtol=1e-5, atol=1e-6) for array in fitting)
    return any(same.all() if leaf.ndim else same.any() for same in alike)


def public_cases(check: Check) -> Iterator[tuple[Arrays, str]]:
    """Inputs of each public case, and the code that is shown of it."""
    for case in check.cases:
        if not case.hidden:
            inputs = draw_inputs(check, case, PUBLIC_SEED)
            yield inputs, write_snippet(check, case, shown_inputs(check, inputs))


@pytest.mark.parametrize("name", sample([*CHECKS], 5))
def test_the_code_of_a_public_case_runs_and_gives_what_is_asked(name: str) -> None:
    lab, check = CHECKS[name]
    names = names_at(lab, check)
    for inputs, code in public_cases(check):
        values = values_of(code, dict(names))
        assert values or "print(" in code, f"check {check.name} has no `ask`, code that asks what `run` asks:\n{code}"
        call = partial(run_on_threads, attempt, check) if check.ranks else bind_call(check, inputs).run
        asked = call(reference_of(lab), public_inputs(inputs))
        texts = [decode_text(array) for array in asked.values() if array.dtype == np.uint8]
        refused = any(isinstance(value, ValueError) for value in values)
        assert refused == ("ValueError" in texts or bool(asked.get("refused", False))), code
        if not texts and check.name not in REWORKED:
            assert [leaf for leaf in leaves(values) if not occurs(leaf, asked)] == [], code
