"""Launchers that die, are killed or cannot start; turns in a sandbox."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mlsys_grader.sandbox import launcher
from mlsys_grader.sandbox.inside import wire
from mlsys_grader.sandbox.launcher import SandboxDiedError
from mlsys_grader.sandbox.sandbox import MAX_FAILED_STARTS, Sandbox, SharedExclusiveLock
from mlsys_lab.errors import CourseError
from tests.grader.inside import RUN
from tests.grader.processes import descendants, gone, named, parent, soon

pytestmark = pytest.mark.sandbox
LIGHT = (
    "import sys; sys.path[:0] = {path!r}; from mlsys_grader.sandbox.inside import worker; "
    "worker.warm_up.__code__ = (lambda: None).__code__; worker.main()"
)
"""Starts a launcher that does without torch: no job here computes anything."""


@pytest.fixture(autouse=True)
def light(cold, monkeypatch):
    """Every sandbox starts launchers of its own, in a tenth of the time."""
    monkeypatch.setattr(launcher, "ENTRY", LIGHT)


@pytest.fixture
def own(tiny):
    with Sandbox(tiny, spares=2) as running:
        yield running


@pytest.fixture
def started(monkeypatch):
    """A list that grows by one for every launcher that is started."""
    processes = []
    real = launcher.Launcher.__init__

    def count(self, *arguments, **options):
        real(self, *arguments, **options)
        processes.append(self._process)

    monkeypatch.setattr(launcher.Launcher, "__init__", count)
    return processes


def works(job):
    order = {"name": "t.ipynb", "source": "", "time_limit_s": 10.0, "memory_bytes": 2 << 30, "cpu_s": 60}
    return job.request("job", order, deadline=soon()).kind == "loaded"


def test_every_job_gets_a_child_of_its_own_however_fast_they_are_asked_for(own):
    jobs = [own.open_job() for _ in range(5)]
    assert all(works(job) for job in jobs)
    for job in jobs:
        job.close()


def test_a_job_is_refused_no_longer_than_a_launcher_takes_to_start(own, started):
    family = descendants(own._launcher._process.pid)
    own._launcher._process.kill()
    assert gone(family)  # one that is only dying may hand over a child that dies with it
    with own.job() as job:
        assert works(job)
    assert len(started) == 1


def test_jobs_of_a_launcher_that_died_know_it_and_start_one_new_launcher_together(own, started):
    jobs = [own.open_job() for _ in range(2)]
    family = descendants(own._launcher._process.pid)
    own._launcher._process.kill()
    assert gone(family)
    for job in jobs:
        with pytest.raises(wire.WireError):
            works(job)
        with pytest.raises(SandboxDiedError):
            job.read_exit()
        job.close()
    answers = []

    def again():
        with own.job() as job:
            answers.append(works(job))

    threads = [threading.Thread(target=again) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True, True]
    assert len(started) == 1


def test_a_launcher_outlives_the_thread_that_asked_for_it(tiny, started):
    made = []
    thread = threading.Thread(target=lambda: made.append(Sandbox(tiny)))
    thread.start()
    thread.join()
    with made[0] as sandbox:
        time.sleep(0.5)  # what dies with a thread dies at once
        with sandbox.job() as job:
            assert works(job)
    assert len(started) == 1


def test_a_launcher_that_hangs_is_replaced(own, started, monkeypatch):
    monkeypatch.setattr(launcher, "ACQUIRE_S", 0.5)
    inside = descendants(own._launcher._process.pid)
    for pid in inside:
        os.kill(pid, signal.SIGSTOP)
    with own.job() as job:
        assert works(job)
    assert len(started) == 1
    assert gone(inside)


def test_a_launcher_that_says_why_it_cannot_start_is_not_started_again(tiny, monkeypatch, started):
    monkeypatch.setattr(launcher, "ENTRY", "raise OSError('no {path[0]}')")
    with pytest.raises(CourseError, match=r"^the sandbox did not start: got OSError: no "):
        Sandbox(tiny)
    assert len(started) == 1


def test_launchers_that_die_without_a_word_are_given_up_in_one_line(tiny, monkeypatch, started):
    monkeypatch.setattr(launcher, "ENTRY", "import os; os.kill(os.getpid(), 9) #{path}")
    with pytest.raises(CourseError, match=r"^the sandbox keeps dying; help: .*memory"):
        Sandbox(tiny)
    assert len(started) == MAX_FAILED_STARTS


def test_a_sandbox_starts_beside_what_comes_next(tiny, started):
    with Sandbox(tiny, wait=False) as sandbox:
        assert len(started) == 1
        with sandbox.job() as job:
            assert works(job)
    with pytest.raises(CourseError, match="closed"):
        sandbox.open_job()


NAME = f"endless{RUN}"
ENDLESS = f"""
import ctypes, signal
ctypes.CDLL(None).prctl(15, b"{NAME}", 0, 0, 0)
while True:
    pass
"""


def test_a_child_dies_with_its_attendant_and_the_judge_knows_that_it_was_nobody_s_doing(own):
    order = {"name": "t.ipynb", "source": ENDLESS, "time_limit_s": 600.0, "memory_bytes": 2 << 30, "cpu_s": 600}
    with own.job() as job:
        job.send("job", order, deadline=soon())
        until = soon()
        while not (children := named(NAME)):
            assert time.monotonic() < until
            time.sleep(0.05)
        os.kill(parent(children[0]), signal.SIGKILL)
        with pytest.raises(wire.ClosedError):
            job.receive(deadline=soon())
        with pytest.raises(SandboxDiedError):
            job.read_exit()
    assert gone(children)


HOLDS = """
import sys, time
sys.path[:0] = {path}
from pathlib import Path
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.sandbox import launcher
from mlsys_grader.sandbox.sandbox import Sandbox
from mlsys_lab.stack.labinfo import find_lab
launcher.ENTRY = {entry!r}
sandbox = Sandbox(GradedLab(find_lab("tiny", Path({labs!r}))), spares=3, unsafe={unsafe})
job = sandbox.open_job()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("unsafe", [False, True])
def test_spares_and_jobs_die_with_their_judge(tiny_labs, unsafe):
    checks = str(Path(__file__).parent / "fixtures" / "checks")
    program = HOLDS.format(path=[checks], labs=str(tiny_labs), entry=LIGHT, unsafe=unsafe)
    judge = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert judge.stdout.readline() == b"ready\n"
    members = 2 + 2 * 4  # the judge and the launcher; the job and three spares with a supervisor each
    until = soon()
    while len(family := descendants(judge.pid)) < members:
        assert time.monotonic() < until
        time.sleep(0.05)
    judge.kill()
    judge.wait()
    judge.stdout.close()
    assert gone(family)


def test_who_wants_to_be_alone_waits_for_the_others_and_goes_before_the_next():
    access, order = SharedExclusiveLock(), []
    alone_waits = threading.Event()

    def exclusive():
        alone_waits.set()
        with access.hold(exclusive=True):
            order.append("alone")

    def shared():
        with access.hold(exclusive=False):
            order.append("shared")

    with access.hold(exclusive=False), access.hold(exclusive=False):
        first = threading.Thread(target=exclusive)
        first.start()
        assert alone_waits.wait(120)
        while not access._waiting:
            time.sleep(0.01)
        second = threading.Thread(target=shared)
        second.start()
        second.join(0.2)
        assert order == []
    first.join()
    second.join()
    assert order == ["alone", "shared"]
