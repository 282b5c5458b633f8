"""What was running when the sandbox ends, by whatever cause, is judged again, and what was decided stands."""

import pytest

from mlsys_grader.judging.judge import MAX_CRASHES, judge
from mlsys_grader.sandbox.launcher import Job
from mlsys_grader.sandbox.sandbox import Sandbox
from tests.grader.processes import descendants, gone

pytestmark = pytest.mark.sandbox


@pytest.fixture
def own(tiny, cold):
    """A sandbox of the test's own, to be killed."""
    with Sandbox(tiny) as running:
        yield running


def kill(sandbox):
    launcher = sandbox._launcher._process
    family = descendants(launcher.pid)
    launcher.kill()
    launcher.wait()
    assert gone(family)


def test_a_sandbox_that_was_killed_is_started_again(own, oracles, artifact):
    kill(own)
    assert all(v.passed for v in judge(artifact(), own, oracles, time_factor=3.0))


def test_a_submission_whose_sandbox_was_killed_is_judged_again(own, oracles, artifact, monkeypatch):
    deaths = []
    receive = Job.receive

    def die_once(job, **options):
        if not deaths:
            deaths.append(kill(own))
        return receive(job, **options)

    monkeypatch.setattr(Job, "receive", die_once)
    assert all(v.passed for v in judge(artifact(), own, oracles, time_factor=3.0))
    assert deaths


@pytest.mark.weekly
def test_a_submission_that_is_alone_when_the_sandbox_dies_again_and_again_is_told_so(
    own, oracles, artifact, monkeypatch
):
    deaths = []
    send = Job.send

    def die(job, kind, *given, **options):
        if kind == "case":
            deaths.append(kill(own))
        send(job, kind, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Job, "send", die)
        got = judge(artifact(), own, oracles, time_factor=3.0)
    assert {v.earned for v in got} == {0} and {v.fault for v in got} == {""}
    assert {v.reason for v in got} == {f"it ended the whole sandbox: got {MAX_CRASHES} times, expected an answer"}
    assert len(deaths) == 1 + MAX_CRASHES
    assert all(v.passed for v in judge(artifact(), own, oracles, time_factor=3.0))


@pytest.mark.weekly
def test_what_was_decided_before_the_sandbox_died_stands(own, oracles, artifact, monkeypatch):
    send = Job.send
    requests = []

    def die(job, kind, *given, **options):
        requests.append(kind)
        if len(requests) == 4:  # the cells, two cases of double, the public one of mean
            kill(own)
        send(job, kind, *given, **options)

    monkeypatch.setattr(Job, "send", die)
    seeds = {"double": 1, "mean": 2, "total": 3}
    got = judge(artifact(), own, oracles, time_factor=3.0, seeds=seeds)
    assert [(v.check, v.earned, v.seed) for v in got] == [("double", 1, 1), ("mean", 2, 2), ("total", 3, 3)]
    again = ["job", "case"]  # of mean, of total, of mean again with its hidden case
    assert requests == ["job", "case", "case", "case", *again, *again, *again, "case"]
