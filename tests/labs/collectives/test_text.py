"""What lab 07 shows of a failed case is code that runs, and what stands in for the lab later has its names."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import numpy as np
import pytest

from mlsys_lab.checks.deciding.snippet import write_snippet
from mlsys_lab.checks.deciding.verdict import draw_inputs, public_inputs
from mlsys_lab.checks.learner.ranks import run_on_threads, split_ranks
from mlsys_lab.checks.learner.spec import Case, Check
from mlsys_lab.checks.runner import PUBLIC_SEED
from mlsys_lab.comm import run
from mlsys_lab.comm.collectives import standard
from tests.labs.harness import labs, module_of

COLLECTIVES = next(lab for lab in labs() if lab.info.topic == "collectives")
REFERENCE = module_of(COLLECTIVES.reference, "reference.ipynb")
SHOWN = [(check, case) for check in COLLECTIVES.checks.checks if check.ranks for case in check.cases if not case.hidden]


def leaves(results: Any) -> list[np.ndarray]:
    return [leaf for one in results for leaf in leaves(one)] if isinstance(results, list) else [np.asarray(results)]


@pytest.mark.parametrize(("check", "case"), SHOWN, ids=[f"{check.name}: {case.name}" for check, case in SHOWN])
def test_the_code_of_a_case_runs_on_ranks_and_gives_what_is_asked(check: Check, case: Case) -> None:
    inputs = public_inputs(draw_inputs(check, case, PUBLIC_SEED))
    *before, last = ast.parse(write_snippet(check, case, inputs)).body
    assert isinstance(last, ast.Expr)
    names = {**vars(REFERENCE), "run": run}
    exec(compile(ast.Module(before, []), "cell", "exec"), names)
    results, _ = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    answers = split_ranks(run_on_threads(check, REFERENCE, inputs))
    assert len(results) == len(answers)
    for result, answer in zip(results, answers, strict=True):
        asked = [array for name, array in answer.items() if name not in ("count", "nothing")]
        shown = [] if result is None else leaves(result)
        assert len(shown) == len(asked)
        for one, other in zip(shown, asked, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", standard.__all__)
def test_what_stands_in_for_the_lab_is_called_as_its_tasks_are(name: str) -> None:
    asked = list(inspect.signature(getattr(REFERENCE, name)).parameters)
    stands_in = list(inspect.signature(getattr(standard, name)).parameters)
    assert stands_in[: len(asked)] == asked
