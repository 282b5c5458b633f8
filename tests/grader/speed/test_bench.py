"""Performance points: honest speed earns, slowness earns less, and what is not honest earns nothing.

Times are compared within one run only, between processes, and with wide margins: the slow are five times slower.
"""

import contextlib
import math
import os
import signal
import socket
import statistics
import time
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import bound_checks
import pytest
import timed_calls
import timed_checks
import torch

from mlsys_checks.sandboxed.performance import Performance, Work
from mlsys_grader.sandbox.inside import timed, wire
from mlsys_grader.speed import bench as module
from mlsys_grader.speed.bench import Bench, min_call_s
from mlsys_grader.speed.rounds import MeasurementConfig, TimedProcess
from mlsys_grader.speed.times import Interval, Times
from mlsys_lab.errors import CourseError, InputError, MissingToolError
from tests.grader.timed_submissions import CHEATS, HONEST, OTHER_HONEST, PATCHED_CLOCK, SLOW, TAKES_OVER

pytestmark = pytest.mark.alone
PROJECT = Path(__file__).parents[3]
CHECKS = Path(timed_checks.__file__).parent
SPEED = timed_checks.LAB["mix"].performance
ORDERS = {"make": "timed_calls:make", "call": "timed_calls:call", "device": "cpu"}
QUICK = MeasurementConfig(
    rounds=6, warmup=1, blocks=1, max_blocks=1, min_round_s=4 * timed_calls.CALL_S, max_calls=16, noise=100.0
)


@contextmanager
def process(source):
    """A process in which a submission is timed; killed with all that it started, as the sandbox does."""
    channel, inner = socket.socketpair()
    if (child := os.fork()) == 0:
        try:
            os.setsid()
            channel.close()
            torch.set_num_threads(1)
            module = ModuleType("artifact")
            exec(source, module.__dict__)
            while True:
                request = wire.receive(inner)
                wire.send(inner, timed.reply_to(request, timed.handle_timed(module, request)))
        finally:
            os._exit(0)
    inner.close()
    try:
        yield TimedProcess(channel, ORDERS)
    finally:
        channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.fixture(scope="module")
def bench():
    with Bench(SPEED, "timed_checks", "mix", [str(CHECKS)], QUICK) as ready:
        yield ready


@pytest.fixture
def measured(bench, monkeypatch):
    """Measures a submission, perhaps with another specification or effort."""

    def measure(source, **changes):
        for name, value in changes.items():
            monkeypatch.setattr(bench, name, value)
        return bench.measure(lambda: process(source))

    return measure


@pytest.fixture(scope="module")
def honest(bench):
    return bench.measure(lambda: process(HONEST))


def test_an_honest_submission_earns_by_its_speed(honest):
    assert honest.measured and honest.earned > 2 and not honest.suspect
    assert 0 < honest.low <= honest.median <= honest.high
    assert (honest.device, honest.baseline, honest.points) == ("cpu", "the library's speed", 4)


def test_another_algorithm_earns_too(measured):
    verdict = measured(OTHER_HONEST)
    assert verdict.measured and verdict.earned > 2 and not verdict.suspect


@pytest.mark.parametrize("source", [SLOW, PATCHED_CLOCK], ids=["slow", "slow with patched clocks"])
def test_slow_earns_less_by_the_judges_clock(honest, measured, source):
    verdict = measured(source)
    assert verdict.measured and not verdict.suspect
    assert 0 < verdict.earned < 0.6 * honest.earned
    assert verdict.high < honest.median


@pytest.mark.parametrize("name", CHEATS)
def test_what_was_not_computed_in_time_earns_nothing(measured, name):
    verdict = measured(CHEATS[name])
    assert verdict.measured and verdict.earned == 0.0 and verdict.low is None
    assert verdict.suspect == verdict.why and "timed" in verdict.why


def test_an_exception_a_death_and_a_hang_earn_nothing_and_say_why(measured):
    raised = measured(HONEST + "def mix(x):\n    raise ValueError('\\n<script>')\n")
    assert (raised.measured, raised.earned) == (True, 0.0) and not raised.suspect
    assert raised.why == "the timed code gave no answer: the timed code raised: ValueError: <script>"
    died = measured(HONEST + "def mix(x):\n    import os\n    os._exit(0)\n")
    assert died.earned == 0.0 and died.why.startswith("the timed code gave no answer")
    max_slowdown = MeasurementConfig(**{**vars(QUICK), "start_s": 5.0})
    hung = measured(HONEST + "def mix(x):\n    while True: pass\n", config=max_slowdown)
    assert hung.earned == 0.0 and "times as long as it should" in hung.why


def test_faster_than_can_be_is_no_mark_and_is_told(measured):
    speed = Performance(**{**vars(SPEED), "min_s": 3600.0})
    verdict = measured(HONEST, performance=speed)
    assert verdict.earned == 0.0 and verdict.suspect.startswith("faster than can be")


def test_a_fraction_of_the_bound_is_measured_in_the_same_run():
    """The product takes 2·S·S·D operations twice: as a fraction of one plain product of that many, less than one."""
    with Bench(bound_checks.LAB["mix"].performance, "bound_checks", "mix", [str(CHECKS)], QUICK) as bench:
        verdict = bench.measure(lambda: process(HONEST))
    assert verdict.measured and verdict.baseline == "this device's limit"
    assert 0 < verdict.low < 1


def test_too_noisy_is_not_measured(measured):
    verdict = measured(HONEST, config=MeasurementConfig(**{**vars(QUICK), "noise": 0.0}))
    assert (verdict.measured, verdict.earned) == (False, None)
    assert verdict.line.startswith("not measured here: too noisy here: medians are known to")


def test_without_the_device_nothing_is_started(monkeypatch):
    monkeypatch.setattr(module, "has_device", lambda kind: False)
    monkeypatch.setattr(module, "_open_clean_process", None)
    with pytest.raises(MissingToolError, match="no CUDA device here"), Bench(SPEED, "no_checks", "mix", [], QUICK):
        pass


def test_a_failure_of_the_courses_side_measures_nothing_and_the_next_finds_fresh_processes(measured, bench):
    """A submission that fills the device can bring it about: it must cost nobody else anything."""
    before = list(bench._processes)
    before[0].channel.shutdown(socket.SHUT_RDWR)
    broken = measured(HONEST)
    assert (broken.measured, broken.earned) == (False, None) and "the measurement itself failed" in broken.why
    assert measured(HONEST).earned > 2 and not set(map(id, bench._processes)) & set(map(id, before))


def test_a_submission_has_so_much_time_and_no_more(measured):
    stalls = (
        TAKES_OVER
        + """
def handle(self, request, before=RoundRunner.handle):
    if request.kind == "show":
        time.sleep(3600)
    return before(self, request)
RoundRunner.handle = handle
"""
    )
    start = time.monotonic()
    verdict = measured(stalls, config=MeasurementConfig(**{**vars(QUICK), "max_total_s": 5.0}))
    assert verdict.earned == 0.0 and time.monotonic() - start < 600  # it would stall for an hour


def test_the_courses_own_failure_is_told(capfd):
    nowhere = Bench(SPEED, "no_such_checks", "mix", [str(CHECKS)], QUICK)
    with pytest.raises(CourseError, match="the baseline's process did not start"), nowhere:
        pass
    assert "No module named 'no_such_checks'" in capfd.readouterr().err


def test_points_rise_from_start_to_target():
    speed = Performance(**{**vars(SPEED), "start": 0.2, "target": 0.6})
    assert [speed.earned(ratio) for ratio in (0.0, 0.2, 0.3, 0.6, 2.0)] == pytest.approx([0, 0, 1, 4, 4])


@pytest.mark.parametrize("count", [6, 9, 12, 18, 25])
def test_an_interval_of_a_median_holds_in_19_of_20_draws_or_more(count):
    """Exactly: the chance that at most k-1 of n fall below the true median, on both sides, is a sum of binomials."""
    interval = Interval.of(range(count))
    inside = (
        sum(math.comb(count, below) for below in range(int(interval.low) + 1, count - int(interval.low))) / 2**count
    )
    assert inside >= 0.95 and interval.median == statistics.median(range(count))
    assert interval.low == count - 1 - interval.high
    tighter = sum(math.comb(count, b) for b in range(int(interval.low) + 2, count - int(interval.low) - 1)) / 2**count
    assert tighter < 0.95


def test_the_floor_is_the_data_sheets_or_half_the_measured_bound():
    speed = Performance(**{**vars(SPEED), "work": Work(3.35e12, 2 * 989.4e12, "bf16")})
    assert min_call_s(speed, Times(), "NVIDIA H100 80GB HBM3") == pytest.approx(2.0, rel=0.01)
    assert min_call_s(Performance(**{**vars(SPEED), "min_s": 5.0}), Times(), "cpu") == 5.0
    bound = Performance(**{**vars(speed), "against": "bound"})
    assert min_call_s(bound, Times(baseline=[Interval(4.0, 5.0, 6.0)]), "cpu") == 2.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": 0}, "positive points"),
        ({"start": 0.6}, "must rise"),
        ({"against": "bound"}, "needs the work"),
        ({"library": timed_calls.call}, "in one module with `make` or `call`"),
    ],
)
def test_a_specification_that_cannot_be_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        Performance(**{**vars(SPEED), **change})


def test_memory_that_is_not_given_back_is_told(monkeypatch):
    free = iter([10 << 30, 1 << 30, 1 << 30])
    monkeypatch.setattr(module, "_free_bytes", lambda empty: next(free))
    monkeypatch.setattr(module, "MEMORY_WAIT_S", -1.0)
    with (
        pytest.raises(CourseError, match="device memory of a dead submission"),
        module._require_memory_freed(None),
    ):
        pass
    free = iter([10 << 30, 1 << 30, 10 << 30])
    monkeypatch.setattr(module, "MEMORY_WAIT_S", 60.0)
    with module._require_memory_freed(None):
        time.sleep(0)
    assert next(free, None) is None
