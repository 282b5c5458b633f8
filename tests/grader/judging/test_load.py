"""Right submissions keep their points on a machine that is busy with other work."""

import json
import os
import subprocess
import sys

import pytest

from mlsys_checks.trusted.artifact import Artifact
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.engines import Task
from mlsys_grader.engines.local import LocalEngine
from mlsys_grader.intake.submission import read_submission
from mlsys_grader.judging.judge import judge
from mlsys_grader.sandbox.sandbox import Sandbox
from tests.labs.harness import labs

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(900)]

TIMES = 8
"""Busy processes for each core."""
LABS = {lab.info.topic: lab for lab in labs()}


@pytest.fixture(scope="module")
def load():
    """Processes that never rest, eight for each core that this one may use."""
    count = TIMES * len(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.mark.timeout(3600)
@pytest.mark.weekly
@pytest.mark.parametrize("topic", LABS)
def test_a_reference_keeps_all_points(topic, load):
    lab = LABS[topic]
    artifact = Artifact.parse("reference.ipynb", lab.reference)
    with Sandbox(GradedLab(lab.info), spares=2) as sandbox, LocalEngine(sandbox, workers=2) as engine:
        results = list(engine.judge_all(Task(f"s{number}", artifact) for number in range(2)))
    for result in results:
        assert result.error == ""
        assert [v.reason + v.fault for v in result.verdicts if not v.passed] == []


def test_a_function_may_work_for_most_of_its_limit(sandbox, oracles, tiny, hand_in, tmp_path, load):
    """By the clock it takes longer than the 2 s that it may work, even where it gets a core for itself."""
    lines = (
        "import time",
        "ends = [time.process_time() + 1.2]  # a first call works so long, and whatever follows is quick",
        "def double(x):",
        "    if time.process_time() < ends[0]: time.sleep(1)",
        "    while time.process_time() < ends[0]: pass",
        "    return 2 * x",
    )
    path = tmp_path / "01-tiny.ipynb"
    path.write_text(json.dumps(hand_in(double="\n".join(lines))))
    verdicts = judge(read_submission(path, tiny).artifact, sandbox, oracles)
    assert [v.reason for v in verdicts] == ["", "", ""]
    assert verdicts[0].call_s > 2
