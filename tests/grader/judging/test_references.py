"""Each lab's reference keeps all its points in the sandbox: whatever a right answer gives comes across to the judge."""

from __future__ import annotations

import pytest

from mlsys_checks.trusted.artifact import Artifact
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.judging.judge import judge
from mlsys_grader.judging.oracle import OracleServer
from mlsys_grader.sandbox.sandbox import Sandbox
from tests.labs.harness import labs

pytestmark = [pytest.mark.every_case, pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("lab", labs(), ids=lambda lab: lab.info.topic)
def test_all_points_are_kept(lab):
    graded = GradedLab(lab.info)
    with Sandbox(graded) as sandbox, OracleServer(graded) as oracles:
        verdicts = judge(Artifact.parse("reference.ipynb", lab.reference), sandbox, oracles)
    assert [f"{v.check}: {v.reason} {v.fault}" for v in verdicts if not v.passed] == []
    assert sum(v.earned for v in verdicts) == sum(check.points for check in lab.checks.checks)
