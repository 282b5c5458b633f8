"""Lab 01: where figures in its text come from, and what stops memory and runs of a function from being forged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mlsys_checks.trusted.artifact import Artifact
from mlsys_checks.trusted.autograd import LAB
from mlsys_checks.trusted.autograd.training import TARGET, least_accuracy
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.verdict import draw_inputs, public_inputs
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.judging.judge import judge
from mlsys_grader.judging.oracle import OracleServer
from mlsys_grader.sandbox.sandbox import Sandbox
from tests.labs.figures import assert_held
from tests.labs.harness import labs, module_of

AUTOGRAD = next(lab for lab in labs() if lab.info.topic == "autograd")
REFERENCE = module_of(AUTOGRAD.reference, "reference.ipynb")
GIVEN = (
    "next to 10,000, float32 resolves only steps of about 0.001",  # 2^-10
    "(about 150 minutes)",
    "(about 120 minutes)",
    "1.0 if you want derivatives of `root` itself",
    "about a thousand calls",
    "`x = x + x`, sixty times over, has $2^{60}$ paths back to the start but only 61 nodes",
    "shapes (64, 10) and (10,). Each bias is used 64 times. The gradient that arrives has shape (64, 10), and the "
    "gradient of the bias is its sum over the 64 rows",
    "10 + 20",
    "With a vocabulary of 100,000 tokens",
    "about 100 lines",
)
IN_CODE = ("fits a sine with sixteen tanh units, in 600 steps", "A stack has 64 such layers")


def computed() -> Iterator[str]:
    parameters, seconds = 124e6, 0.010
    weeks = parameters * seconds / (7 * 86_400)
    yield f"GPT-2 small has {parameters / 1e6:.0f} million parameters"
    yield f"all {parameters / 1e6:.0f} million derivatives"
    yield f"at {1e3 * seconds:.0f} ms a run, one training step would take {'two' if round(weeks) == 2 else weeks} weeks"
    check = LAB["train_digits"]
    images = int((check.expect(draw_inputs(check, check.cases[0], 0))["predictions"] >= 0).sum())
    yield f"with {100 * TARGET:.3g} % test accuracy"
    yield f"Aim for {100 * TARGET:.3g} % on images"
    yield f"on a test set of {images} images, and asks for {100 * least_accuracy(images):.3g} %"
    yield f"nothing keeps a logit below {math.ceil(math.log(np.finfo(np.float32).max))}"
    yield f"for 64 layers that is about {round(math.sqrt(3 * 64))}"


def test_figures_are_computed_in_code_or_given() -> None:
    assert_held(AUTOGRAD, computed=computed(), in_code=IN_CODE, given=GIVEN)


def twice_each(function, x):
    """A checkpoint whose backward pass runs the function once more than it has to."""
    runs = [0]

    def again(h):
        runs[0] += 1
        if runs[0] > 1:
            with REFERENCE.no_grad():
                function(h)
        return function(h)

    return REFERENCE.checkpoint(again, x)


def test_gradients_show_how_often_a_checkpointed_function_ran() -> None:
    check = LAB["checkpoint"]
    inputs = draw_inputs(check, check.cases[0], 3)
    expected = check.expect(inputs)
    got = check.run(SimpleNamespace(**(vars(REFERENCE) | {"checkpoint": twice_each})), public_inputs(inputs))
    forged = got | {name: expected[name] for name in expected if "`function`" in name}
    mismatch = close(forged, expected)
    assert mismatch is not None and ".grad" in mismatch.what


UNCOUNTED = """
import mlsys_checks.sandboxed.attempt
mlsys_checks.sandboxed.attempt._find_memory_excess = lambda check, peak_bytes: None
def checkpoint_sequential(functions, x, segments):
    return run_layers(functions, x)
"""


@pytest.mark.parametrize(("more", "reason"), [(UNCOUNTED, "it needs too much memory"), ("", "")])
def test_the_kernel_refuses_a_graph_that_is_held_whole_even_if_counting_is_switched_off(more, reason) -> None:
    lab = GradedLab(AUTOGRAD.info)
    lab.__dict__["checks"] = replace(lab.checks, checks=(lab.checks["checkpoint_memory"],))
    source = f"{AUTOGRAD.reference}\n# %% cell 1000\n{more}"
    with Sandbox(lab) as sandbox, OracleServer(lab) as oracles:
        (verdict,) = judge(Artifact.parse("uncounted.ipynb", source), sandbox, oracles)
    assert verdict.passed is not bool(reason)
    assert verdict.what == reason
