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
import numpy as np
import pytest
import timed_calls
import timed_checks
import torch

from grader import performance as module
from grader import timed, wire
from grader.performance import Stand, decide, floor_s
from grader.rounds import Effort, Match, Party
from grader.times import Interval, Times
from mlsys_lab.checks.performance import Performance, Work
from mlsys_lab.errors import CourseError, InputError, MissingToolError

PROJECT = Path(__file__).parents[2]
CHECKS = Path(timed_checks.__file__).parent
SPEED = timed_checks.LAB["mix"].performance
ORDERS = {"make": "timed_calls:make", "call": "timed_calls:call", "device": "cpu"}
QUICK = Effort(
    rounds=6, warmup=1, blocks=1, most_blocks=1, least_round_s=4 * timed_calls.CALL_S, most_calls=16, noise=100.0
)

HONEST = """
import time, torch
def right(x, wait=time.sleep):
    wait(0.02)
    return torch.softmax(x @ x.T, dim=-1) @ x
def mix(x):
    return right(x)
"""
OTHER_HONEST = """
import time, torch
def mix(x):
    time.sleep(0.02)
    weights = (x @ x.T)
    weights = (weights - weights.amax(dim=1, keepdim=True)).exp_()
    return (weights @ x) / weights.sum(dim=1, keepdim=True)
"""
SLOW = HONEST + "def mix(x):\n    return [right(x) for _ in range(5)][-1]\n"
PATCHED_CLOCK = (
    SLOW
    + """
import time
for name in ("time", "perf_counter", "monotonic", "perf_counter_ns", "monotonic_ns"):
    setattr(time, name, lambda: 0)
"""
)

TAKES_OVER = HONEST + "import numpy as np\nfrom grader import timed, wire\nPlayer = timed.Player\n"
"""Submissions run in the process that times them, so they can change all of it."""

CHEATS = {
    "wrong but fast": HONEST + "def mix(x):\n    return torch.zeros_like(x)\n",
    "half precision": HONEST + "def mix(x):\n    return right(x.bfloat16()).float()\n",
    "the first answer for its shape, again": (
        HONEST + "kept = {}\ndef mix(x):\n    return kept.setdefault(x.shape, right(x))\n"
    ),
    "every second call left out": (
        HONEST
        + """
turn, last = 0, None
def mix(x):
    global turn, last
    turn += 1
    if last is None or turn % 2:
        last = right(x)
    return last
"""
    ),
    "inputs changed to what is quick": HONEST + "def mix(x):\n    x.zero_()\n    return x\n",
    "nothing computed until asked": (
        TAKES_OVER
        + """
def play(self, seed, calls):
    self.seeds = [seed]
    for _ in range(calls):
        self.seeds.append(timed.next_seed(self.seeds[-1], [0.0]))
    return np.zeros((calls, 1))
def answer(self, question, before=Player.answer):
    if question.kind == "show":
        self.outputs = [(right(*self.make(seed, self.device)),) for seed in self.seeds]
    return before(self, question)
Player.play, Player.answer = play, answer
"""
    ),
    "started ahead, in one batch": (
        TAKES_OVER
        + """
def play(self, seed, calls):
    seeds = [seed]
    for _ in range(calls - 1):
        seeds.append(timed.next_seed(seeds[-1], [0.0]))
    self.outputs = [(out,) for out in right_all(torch.stack([self.make(s, self.device)[0] for s in seeds]))]
    return np.array([timed.project(out, s) for out, s in zip(self.outputs, seeds)])
def right_all(x):
    return torch.softmax(x @ x.mT, dim=-1) @ x
Player.play = play
"""
    ),
    "computed ahead by a thread": (
        TAKES_OVER
        + """
import threading
ready = {}
def ahead(self):
    for seed in range(8):
        outputs = (right(*self.make(seed, self.device)),)
        ready[seed] = outputs, timed.project(outputs, seed)
def play(self, seed, calls):
    thread = threading.Thread(target=ahead, args=(self,))
    thread.start()
    thread.join()
    self.outputs, committed = zip(*(ready[call % 8] for call in range(calls)))
    return np.array(committed)
Player.play = play
"""
    ),
    "answers of the round before, again": (
        TAKES_OVER
        + """
def play(self, seed, calls, before=Player.play):
    if not hasattr(self, "old") or len(self.old) != calls:
        self.old = before(self, seed, calls)
    return self.old
Player.play = play
"""
    ),
    "a right number and another output": (
        TAKES_OVER
        + """
def answer(self, question, before=Player.answer):
    reply = before(self, question)
    if question.kind == "show":
        reply.arrays["out0"] = reply.arrays["out0"] + np.float32(0.01)
    return reply
Player.answer = answer
"""
    ),
    "another dtype": HONEST + "def mix(x):\n    return right(x.double())\n",
    "another shape": HONEST + "def mix(x):\n    return right(x).T.contiguous()\n",
    "not a number": HONEST + "def mix(x):\n    return right(x) * float('nan')\n",
    "numbers for calls that were not made": (
        TAKES_OVER
        + """
def play(self, seed, calls, before=Player.play):
    return before(self, seed, 1)
Player.play = play
"""
    ),
    "a frame written ahead": (
        TAKES_OVER
        + """
def answering(question, reply):
    return wire.Frame(reply.kind, {**reply.meta, "nonce": "0" * 32}, reply.arrays)
timed.answering = answering
"""
    ),
}


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
                question = wire.receive(inner)
                wire.send(inner, timed.answering(question, timed.answer_for(module, question)))
        finally:
            os._exit(0)
    inner.close()
    try:
        yield Party(channel, ORDERS)
    finally:
        channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.fixture(scope="module")
def stand():
    with Stand(SPEED, "timed_checks", "mix", [str(CHECKS)], QUICK) as ready:
        yield ready


@pytest.fixture
def measured(stand, monkeypatch):
    """Measures a submission, perhaps with another specification or effort."""

    def measure(source, **changes):
        for name, value in changes.items():
            monkeypatch.setattr(stand, name, value)
        return stand.measure(lambda: process(source))

    return measure


@pytest.fixture(scope="module")
def honest(stand):
    return stand.measure(lambda: process(HONEST))


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
    patience = Effort(**{**vars(QUICK), "start_s": 5.0})
    hung = measured(HONEST + "def mix(x):\n    while True: pass\n", effort=patience)
    assert hung.earned == 0.0 and "times as long as it should" in hung.why


def test_faster_than_can_be_is_no_mark_and_is_told(measured):
    speed = Performance(**{**vars(SPEED), "least_s": 3600.0})
    verdict = measured(HONEST, performance=speed)
    assert verdict.earned == 0.0 and verdict.suspect.startswith("faster than can be")


def test_a_fraction_of_the_bound_is_measured_in_the_same_run():
    """The product takes 2·S·S·D operations twice: as a fraction of one plain product of that many, less than one."""
    with Stand(bound_checks.LAB["mix"].performance, "bound_checks", "mix", [str(CHECKS)], QUICK) as stand:
        verdict = stand.measure(lambda: process(HONEST))
    assert verdict.measured and verdict.baseline == "this device's limit"
    assert 0 < verdict.low < 1


def test_too_noisy_is_not_measured(measured):
    verdict = measured(HONEST, effort=Effort(**{**vars(QUICK), "noise": 0.0}))
    assert (verdict.measured, verdict.earned) == (False, None)
    assert verdict.line.startswith("not measured here: too noisy here: medians are known to")


def test_without_the_device_nothing_is_started(monkeypatch):
    monkeypatch.setattr(module, "has_device", lambda kind: False)
    monkeypatch.setattr(module, "_clean", None)
    with pytest.raises(MissingToolError, match="no CUDA device here"), Stand(SPEED, "no_checks", "mix", [], QUICK):
        pass


def test_a_failure_of_the_courses_side_measures_nothing_and_the_next_finds_fresh_processes(measured, stand):
    """A submission that fills the device can bring it about: it must cost nobody else anything."""
    before = list(stand._parties)
    before[0].channel.shutdown(socket.SHUT_RDWR)
    broken = measured(HONEST)
    assert (broken.measured, broken.earned) == (False, None) and "the measurement itself failed" in broken.why
    assert measured(HONEST).earned > 2 and not set(map(id, stand._parties)) & set(map(id, before))


def test_a_submission_has_so_much_time_and_no_more(measured):
    stalls = (
        TAKES_OVER
        + """
def answer(self, question, before=Player.answer):
    if question.kind == "show":
        time.sleep(3600)
    return before(self, question)
Player.answer = answer
"""
    )
    start = time.monotonic()
    verdict = measured(stalls, effort=Effort(**{**vars(QUICK), "most_s": 5.0}))
    assert verdict.earned == 0.0 and time.monotonic() - start < 100


def test_the_courses_own_failure_is_told(capfd):
    nowhere = Stand(SPEED, "no_such_checks", "mix", [str(CHECKS)], QUICK)
    with pytest.raises(CourseError, match="the baseline's process did not start"), nowhere:
        pass
    assert "No module named 'no_such_checks'" in capfd.readouterr().err


class Recorded(Party):
    """Plays rounds of given lengths and vouches for itself; writes down when it is asked."""

    def __init__(self, name, seconds, journal):
        self.name, self.seconds, self.journal = name, iter(seconds), journal

    def round(self, calls, limit_s):
        self.journal.append(self.name)
        return next(self.seconds) * calls, 0, np.zeros((calls, 1))

    def ask(self, kind, meta=None, arrays=None, *, deadline, limits=None):
        if kind == "size":
            return wire.Frame("size", {"bytes": 1 << 40})
        one = np.ones((1, 1))
        if kind == "expect":
            arrays = {"p": 0 * one, "norm": one, "again": np.zeros(1), "tolerance": np.ones(1)}
            return wire.Frame("expected", {"dtypes": ["float32"]}, {**arrays, "out0": np.float32([0])})
        return wire.Frame("shown", {"dtypes": ["float32"]}, {"out0": np.float32([0])})


def forever(*values):
    yield from values
    while True:
        yield values[-1]


def play(library, null, submission, **effort):
    journal = []

    @contextmanager
    def opened():
        journal.append("open")
        yield Recorded("submission", submission, journal)
        journal.append("dead")

    effort = Effort(**{"rounds": 6, "warmup": 1, "blocks": 2, "most_blocks": 2, **effort})
    parties = Recorded("library", library, journal), Recorded("null", null, journal)
    match = Match(SPEED, *parties, opened, effort=effort)
    return match.play(), journal


def test_no_submission_is_alive_while_the_baseline_is_timed():
    times, journal = play(forever(3.0), forever(1.0), forever(3.0))
    alive, blocks = False, 0
    for event in journal:
        alive = {"open": True, "dead": False}.get(event, alive)
        blocks += event == "open"
        assert not alive or event in ("open", "submission")
    assert blocks == 2 and len(times.baseline) == 3 and len(times.submission) == 12


def test_the_low_end_takes_nothing_from_the_submissions_time_and_the_median_the_null_rounds():
    times, _ = play(forever(3.0), forever(1.0), forever(3.0))
    assert times.ratio.low == pytest.approx(2 / 3)
    assert times.ratio.median == times.ratio.high == pytest.approx(1.0)


def test_slowing_the_device_for_those_who_come_after_gains_nothing():
    first = [3.0] * (3 + 7)  # to find the calls per round, and the first block
    slowed, _ = play(forever(*first, 30.0), forever(1.0), forever(3.0))
    fair, _ = play(forever(3.0), forever(1.0), forever(3.0))
    assert slowed.ratio.low == fair.ratio.low


def test_rounds_go_on_until_it_is_quiet_enough_and_no_longer():
    noisy = [1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0]
    times, _ = play(forever(3.0), forever(1.0), forever(*noisy, 3.0), blocks=1, most_blocks=6, noise=0.1)
    assert 12 <= len(times.submission) < 36
    assert decide(SPEED, times, "cpu", Effort(noise=0.1)).measured
    times, _ = play(forever(3.0), forever(1.0), (1.0 + 8 * (n % 2) for n in range(1000)), blocks=1, most_blocks=3)
    assert len(times.submission) == 18
    verdict = decide(SPEED, times, "cpu", Effort(noise=0.1))
    assert not verdict.measured and verdict.earned is None


def test_a_large_output_is_handed_over_in_some_rounds_drawn_by_lot(monkeypatch):
    asked = []
    ask = Recorded.ask

    def counted(self, kind, *rest, **how):
        asked.append((self.name, kind))
        return ask(self, kind, *rest, **how)

    monkeypatch.setattr(Recorded, "ask", counted)
    play(forever(3.0), forever(1.0), forever(3.0), blocks=1, most_blocks=1, shown_bytes=3 << 40)
    assert asked.count(("submission", "show")) == 3 and asked.count(("library", "expect")) == 7


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
    assert floor_s(speed, Times(), "NVIDIA H100 80GB HBM3") == pytest.approx(2.0, rel=0.01)
    assert floor_s(Performance(**{**vars(SPEED), "least_s": 5.0}), Times(), "cpu") == 5.0
    bound = Performance(**{**vars(speed), "against": "bound"})
    assert floor_s(bound, Times(baseline=[Interval(4.0, 5.0, 6.0)]), "cpu") == 2.0


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
    monkeypatch.setattr(module, "_free_bytes", lambda null: next(free))
    monkeypatch.setattr(module, "MEMORY_WAIT_S", -1.0)
    with pytest.raises(CourseError, match="device memory of a dead submission"), module._memory_back(None):
        pass
    free = iter([10 << 30, 1 << 30, 10 << 30])
    monkeypatch.setattr(module, "MEMORY_WAIT_S", 60.0)
    with module._memory_back(None):
        time.sleep(0)
    assert next(free, None) is None
