import json

import pytest

from mlsys_grader.engines import Task
from mlsys_grader.engines.local import PREFETCH, LocalEngine
from mlsys_grader.intake.submission import read_submission
from mlsys_grader.sandbox.sandbox import Sandbox
from mlsys_lab.errors import CourseError

pytestmark = pytest.mark.sandbox


@pytest.fixture
def artifact(tmp_path, tiny, hand_in):
    path = tmp_path / "01-tiny.ipynb"
    path.write_text(json.dumps(hand_in(mean="def mean(x):\n    return x.sum()\n")))
    return read_submission(path, tiny).artifact


@pytest.mark.parametrize("workers", [1, 3])
def test_every_task_gets_one_result_however_many_workers(sandbox, artifact, workers):
    with LocalEngine(sandbox, workers=workers, time_factor=5.0) as engine:
        results = list(engine.judge_all(Task(f"s{number}", artifact) for number in range(6)))
    assert sorted(result.student for result in results) == [f"s{number}" for number in range(6)]
    assert {tuple(v.earned for v in result.verdicts) for result in results} == {(1, 0, 3)}


def test_the_same_seeds_give_the_same_verdicts_with_one_worker_and_with_two(sandbox, artifact):
    seeds = {"double": 11, "mean": 12, "total": 13}
    tasks = [Task(f"s{number}", artifact, seeds) for number in range(4)]
    told = set()
    for workers in (1, 2):
        with LocalEngine(sandbox, workers=workers, time_factor=5.0) as engine:
            for result in engine.judge_all(tasks):
                told.add(tuple((v.check, v.earned, v.seed, v.what, v.got, v.expected, v.case) for v in result.verdicts))
    assert len(told) == 1


def test_tasks_are_taken_as_they_are_needed(sandbox, artifact):
    taken = []

    def tasks():
        for number in range(30):
            taken.append(number)
            yield Task(f"s{number}", artifact)

    with LocalEngine(sandbox, workers=2, time_factor=5.0) as engine:
        for finished, _ in enumerate(engine.judge_all(tasks())):
            assert len(taken) <= finished + 2 + PREFETCH + 2  # at work, waiting, and ready at the same moment
    assert len(taken) == 30


def test_a_task_that_cannot_be_judged_is_one_result_with_an_error(sandbox, artifact):
    tasks = [Task("broken", None), Task("fine", artifact)]
    with LocalEngine(sandbox, workers=2, time_factor=5.0) as engine:
        found = {result.student: result for result in engine.judge_all(tasks)}
    assert "AttributeError" in found["broken"].error and not found["broken"].verdicts
    assert not found["fine"].error and len(found["fine"].verdicts) == 3


def test_a_sandbox_that_cannot_start_is_told_before_anything_is_judged(tiny, monkeypatch):
    monkeypatch.setattr("mlsys_grader.sandbox.launcher.ENTRY", "raise OSError('no {path[0]}')")
    with Sandbox(tiny, wait=False) as sandbox, pytest.raises(CourseError, match="did not start"):
        LocalEngine(sandbox)


def test_cut_off_it_does_not_wait_for_a_submission_that_takes_its_time(tiny, artifact, tmp_path, hand_in):
    path = tmp_path / "slow.ipynb"
    path.write_text(json.dumps(hand_in(double="import time\ndef double(x):\n    time.sleep(3600)\n")))
    slow = read_submission(path, tiny).artifact
    with Sandbox(tiny, spares=2) as sandbox, LocalEngine(sandbox, workers=2, time_factor=1000.0) as engine:
        results = engine.judge_all([Task("slow", slow), *(Task(f"s{number}", artifact) for number in range(5))])
        assert next(results).student == "s0"
        results.close()
