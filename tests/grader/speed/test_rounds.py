"""The order of rounds, and how many: played by parties whose times are given, so that nothing is measured."""

from contextlib import contextmanager

import numpy as np
import pytest
import timed_checks

from mlsys_grader.sandbox.inside import wire
from mlsys_grader.speed.bench import score
from mlsys_grader.speed.rounds import Comparison, MeasurementConfig, TimedProcess

SPEED = timed_checks.LAB["mix"].performance


class Recorded(TimedProcess):
    """Plays rounds of given lengths and vouches for itself; writes down when it is asked."""

    def __init__(self, name, seconds, journal):
        self.name, self.seconds, self.journal = name, iter(seconds), journal

    def round(self, calls, limit_s):
        self.journal.append(self.name)
        return next(self.seconds) * calls, 0, np.zeros((calls, 1))

    def request(self, kind, meta=None, arrays=None, *, deadline, limits=None):
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


def run(library, empty, submission, **config):
    journal = []

    @contextmanager
    def opened():
        journal.append("open")
        yield Recorded("submission", submission, journal)
        journal.append("dead")

    config = MeasurementConfig(**{"rounds": 6, "warmup": 1, "blocks": 2, "max_blocks": 2, **config})
    processes = Recorded("library", library, journal), Recorded("null", empty, journal)
    comparison = Comparison(SPEED, *processes, opened, config=config)
    return comparison.run(), journal


def test_no_submission_is_alive_while_the_baseline_is_timed():
    times, journal = run(forever(3.0), forever(1.0), forever(3.0))
    alive, blocks = False, 0
    for event in journal:
        alive = {"open": True, "dead": False}.get(event, alive)
        blocks += event == "open"
        assert not alive or event in ("open", "submission")
    assert blocks == 2 and len(times.baseline) == 3 and len(times.submission) == 12


def test_the_low_end_takes_nothing_from_the_submissions_time_and_the_median_the_null_rounds():
    times, _ = run(forever(3.0), forever(1.0), forever(3.0))
    assert times.ratio.low == pytest.approx(2 / 3)
    assert times.ratio.median == times.ratio.high == pytest.approx(1.0)


def test_slowing_the_device_for_those_who_come_after_gains_nothing():
    first = [3.0] * (3 + 7)  # to find the calls per round, and the first block
    slowed, _ = run(forever(*first, 30.0), forever(1.0), forever(3.0))
    fair, _ = run(forever(3.0), forever(1.0), forever(3.0))
    assert slowed.ratio.low == fair.ratio.low


def test_rounds_go_on_until_it_is_quiet_enough_and_no_longer():
    noisy = [1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0]
    times, _ = run(forever(3.0), forever(1.0), forever(*noisy, 3.0), blocks=1, max_blocks=6, noise=0.1)
    assert 12 <= len(times.submission) < 36
    assert score(SPEED, times, "cpu", MeasurementConfig(noise=0.1)).measured
    times, _ = run(forever(3.0), forever(1.0), (1.0 + 8 * (n % 2) for n in range(1000)), blocks=1, max_blocks=3)
    assert len(times.submission) == 18
    verdict = score(SPEED, times, "cpu", MeasurementConfig(noise=0.1))
    assert not verdict.measured and verdict.earned is None


def test_a_large_output_is_handed_over_in_some_rounds_drawn_by_lot(monkeypatch):
    asked = []
    ask = Recorded.request

    def counted(self, kind, *rest, **how):
        asked.append((self.name, kind))
        return ask(self, kind, *rest, **how)

    monkeypatch.setattr(Recorded, "request", counted)
    run(forever(3.0), forever(1.0), forever(3.0), blocks=1, max_blocks=1, max_shown_bytes=3 << 40)
    assert asked.count(("submission", "show")) == 3 and asked.count(("library", "expect")) == 7
