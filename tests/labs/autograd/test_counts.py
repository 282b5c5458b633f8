"""Task 8 of lab 01 against forged counts: arrays tell how often a function ran, the kernel caps memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.trusted.artifact import Artifact
from mlsys_checks.trusted.autograd import LAB
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.verdict import draw_inputs, public_inputs
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.judging.judge import judge
from mlsys_grader.judging.oracle import OracleServer
from mlsys_grader.sandbox.sandbox import Sandbox
from tests.labs.harness import labs, module_of

AUTOGRAD = next(lab for lab in labs() if lab.info.topic == "autograd")
REFERENCE = module_of(AUTOGRAD.reference, "reference.ipynb")


def _answer(check: str, case: int, **changes: Any) -> tuple[Arrays, Arrays]:
    """What the reference, with some functions changed, gives for a case, and what is expected."""
    spec = LAB[check]
    inputs = draw_inputs(spec, spec.cases[case], 3)
    names = {name: getattr(REFERENCE, name) for name in spec.uses}
    return spec.run(SimpleNamespace(**(names | changes)), public_inputs(inputs)), spec.expect(inputs)


def _twice_each(fn: Callable[[Any], Any], x: Any) -> Any:
    """A checkpoint whose backward pass runs fn once more than it has to."""
    runs = [0]

    def fn_again(h: Any) -> Any:
        runs[0] += 1
        if runs[0] > 1:
            with REFERENCE.no_grad():
                fn(h)
        return fn(h)

    return REFERENCE.checkpoint(fn_again, x)


@pytest.mark.parametrize("case", range(5))
@pytest.mark.parametrize("checkpoint", [lambda fn, x: fn(x), _twice_each], ids=["holds all", "once too often"])
def test_gradients_of_checkpoint_tell_how_often_a_stage_ran(case: int, checkpoint: Any) -> None:
    got, expected = _answer("checkpoint", case)
    assert close(got, expected) is None
    got, expected = _answer("checkpoint", case, checkpoint=checkpoint)
    forged = ("calls of fn", "runs of fn that were recorded before any backward pass")
    got |= {name: expected[name] for name in forged}  # forged counts do not help
    mismatch = close(got, expected)
    assert mismatch is not None and ".grad" in mismatch.what


def test_a_layer_that_runs_a_third_time_spoils_the_gradients() -> None:
    def sequential(layers: list[Any], x: Any, segments: int) -> Any:
        for layer in layers:
            x = _twice_each(layer, x)
        return x

    check = LAB["checkpoint_memory"]
    got, expected = _answer("checkpoint_memory", 1, checkpoint_sequential=sequential)
    forged = got | {"most calls of a layer": np.array(2)}
    mismatch = check.compare(forged, expected)
    assert mismatch is not None and "gradient" in mismatch.what
    mismatch = check.compare(got, expected)
    assert mismatch is not None and mismatch.what == "a layer runs too often"


UNCOUNTED = """
import mlsys_checks.sandboxed.attempt
mlsys_checks.sandboxed.attempt._over_budget = lambda check, peak_bytes: None
def checkpoint_sequential(layers, x, segments):
    return run_layers(layers, x)
"""


@pytest.mark.parametrize(("more", "reason"), [(UNCOUNTED, "it needs too much memory"), ("", "")])
def test_a_graph_held_whole_is_refused_by_the_kernel_where_nobody_counts(more: str, reason: str) -> None:
    lab = GradedLab(AUTOGRAD.info)
    only = replace(lab.checks, checks=(lab.checks["checkpoint_memory"],))
    lab.__dict__["checks"] = only
    source = f"{AUTOGRAD.reference}\n# %% cell 1000\n{more}"
    with Sandbox(lab) as sandbox, OracleServer(lab) as oracles:
        (verdict,) = judge(Artifact.parse("uncounted.ipynb", source), sandbox, oracles)
    assert verdict.passed is not bool(reason)
    assert verdict.what == reason
