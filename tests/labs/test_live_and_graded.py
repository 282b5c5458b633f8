"""Kernels in a notebook are checked as the grader loads them: what one accepts, the other accepts too."""

from __future__ import annotations

import re

import pytest

from mlsys_checks.live import LiveChecks
from mlsys_checks.runner import run_check
from mlsys_checks.sandboxed.spec import Check
from mlsys_checks.trusted.artifact import Artifact
from mlsys_grader.proving.in_process import load_for_check
from mlsys_lab.errors import CourseError
from tests.labs.harness import LabUnderTest, labs, live_names
from tests.sampling import sample

LABS = [lab for lab in labs() if any(check.traced for check in lab.checks.checks)]
NUMBER_TYPE = r"(?<![\w.])(float32|float64|int32|int64)(?=[(,)\]])"
SPELLINGS = {
    "as written": ("", "", ""),
    "np.float32": ("import numpy as np", NUMBER_TYPE, r"np.\1"),
    "nb.float32": ("import numba as nb", NUMBER_TYPE, r"nb.\1"),
    "math as m": ("import math as m", r"(?<![\w.])math[.]", "m."),
    "triton as tr": ("import triton as tr", r"(?<![\w.])triton[.](?=jit|cdiv)", "tr."),
}
"""Ways in which learners import what kernels use: each makes another text of an answer."""


def spell(source: str, imported: str, pattern: str, by: str) -> str:
    """An answer that imports a module under another name and calls it so."""
    lines = [re.sub(pattern, by, one) if "import" not in one else one for one in source.splitlines()]
    return "\n".join([imported, *lines])


def answers(lab: LabUnderTest) -> dict[str, str]:
    """The reference and every accepted alternative, by name."""
    return {"reference": lab.reference, **{path.stem: lab.with_definitions(path) for path in lab.alternatives}}


TRIALS = {
    f"{lab.info.topic}: {name}, {spelling}": (lab, spell(source, *how))
    for lab in LABS
    for name, source in answers(lab).items()
    for spelling, how in SPELLINGS.items()
    if spelling == "as written" or re.search(how[1], source)
}


@pytest.mark.parametrize("trial", sample([*TRIALS], 24))
def test_a_right_kernel_passes_in_the_notebook_and_in_the_grader(trial: str) -> None:
    lab, source = TRIALS[trial]
    live = LiveChecks(lab.checks, live_names(source))
    artifact = Artifact.parse("answer.ipynb", source)
    found = {check.name: (refusal(live, check), graded(artifact, check)) for check in traced(lab)}
    assert found == dict.fromkeys(found, ("", ""))


def traced(lab: LabUnderTest) -> list[Check]:
    return [check for check in lab.checks.checks if check.traced and not check.kernel_sources]


def refusal(live: LiveChecks, check: Check) -> str:
    """What the notebook's check says against an answer."""
    try:
        live(check.name)
    except CourseError as error:
        return str(error)
    return ""


def graded(artifact: Artifact, check: Check) -> str:
    """What the grader's check says against an answer."""
    report = run_check(check, load_for_check(check, artifact), hidden=True)
    return report.line if report.mismatch else ""
