"""Task 2: a timing loop and a fit. Oracles: made-up times, a solver for squares."""

from __future__ import annotations

import statistics
from functools import partial

import numpy as np
from scipy.optimize import least_squares

from mlsys_checks.sandboxed.gpu_model import timing as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Query
from mlsys_checks.sandboxed.values import write_number
from mlsys_checks.trusted.answers import agree, likely
from mlsys_lab.errors import InputError

BY_SOLVER = 1e4
"""A fit may be off by 1e-5: digits are lost in equations whose columns differ by eight orders of magnitude."""
STEP_S = 2.0**-30
"""The tick of the clock that is made up."""
TICKS = (0, 0, 1, 2, 2, 3, 4, 6, 7, 9)
"""Times of calls by a coarse clock, beside three of 0: the median is another one without zeros, and of each once."""
STALE = 0.125
"""What share of its time a call takes whose input was seen before: it is still in the cache. It warms nothing up."""


class MadeUpMachine:
    """A clock, inputs to make and a call to time, whose times are given: who times it knows only what it has read."""

    def __init__(self, arrays: Arrays) -> None:
        self._now_s = float(arrays["_start_s"])
        self._make_s, self._clock_s = float(arrays["_make_s"]), float(arrays["_clock_s"])
        self._calls_s: list[float] = arrays["_calls_s"].tolist()
        self._made = self._called = self._warmed = 0
        self._seen: set[int] = set()

    def answer(self, what: str, value: int) -> float:
        """Answer "clock" with the time, "make" with the number of a new input, and call input `value` for "call".

        Raises InputError for an input that was not made or is not of its turn, and for a call too many.
        """
        if what == "make":
            if self._made and self._made not in self._seen:
                raise InputError(
                    "`make` is called again before the input that it made last was used",
                    expected="in each turn, make an input and call it",
                )
            self._made += 1
            self._now_s += self._make_s
            return self._made
        if what == "call":
            self._call(value)
            return 0.0
        if what != "clock":
            raise InputError("a machine is asked for something else", got=what[:40], expected="make, call or clock")
        read_s = self._now_s
        self._now_s += self._clock_s
        return read_s

    def _call(self, value: int) -> None:
        if not 1 <= value <= self._made:
            raise InputError("`call` was given something else than an input", got=value, expected="make()")
        if self._called == len(self._calls_s):
            raise InputError("`call` is called too often", expected=f"warmup + samples = {self._called} times")
        fresh = value not in self._seen
        self._now_s += self._calls_s[self._warmed] * (1.0 if fresh else STALE)
        self._called += 1
        self._warmed += fresh
        self._seen.add(value)


def _made_up(arrays: Arrays) -> Query:
    return MadeUpMachine(arrays).answer


def _median_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Calls that are slow at first, but for one by chance; of the others a few were disturbed.

    Times are whole numbers of `STEP_S`, so that sums are exact. All are different, unless the clock is `coarse`: then
    the warm-up's are equal, and the samples' are few numbers of its ticks. Three calls that are done within a tick come
    first, in the middle and last, whence a search for the median by parts starts.
    """
    samples, warmup = case.params["samples"], case.params["warmup"]
    calls_s = (1000.0 + rng.permutation(400))[: warmup + samples]
    calls_s[:warmup] *= 40
    calls_s[2:warmup][:1] = 500
    disturbed = warmup + rng.permutation(samples)[: samples // 4]
    calls_s[disturbed] *= 10
    clock_s = 30.0
    if case.params.get("coarse"):
        tick, clock_s, others = float(rng.integers(100, 900)), 0.0, rng.permutation(TICKS)
        half = len(TICKS) // 2
        calls_s = tick * np.array([40] * warmup + [0, *others[:half], 0, *others[half:], 0])
    return {
        "samples": np.array(samples),
        "warmup": np.array(warmup),
        "_start_s": np.array(float(rng.integers(1, 1000))),
        "_make_s": np.array(5000 * STEP_S),
        "_clock_s": np.array(clock_s * STEP_S),
        "_calls_s": calls_s * STEP_S,
    }


def _median_expect(arrays: Arrays) -> Arrays:
    """The median of the calls' times, each with one reading of the clock."""
    warmup, read_s = int(arrays["warmup"]), float(arrays["_clock_s"])
    times = (arrays["_calls_s"] + read_s).tolist()
    kept, made, name = times[warmup:], float(arrays["_make_s"]), calls.median_call(len(times) - warmup, warmup)
    right = statistics.median(kept)
    return {name: np.array(right)} | likely(
        name,
        {
            "this is the mean": statistics.mean(kept),
            "this is the least": min(kept),
            "this is all samples together": sum(kept),
            "the making of inputs was timed too": right + made,
            "warm-up is among the samples": statistics.median(times),
            "an input was used again": (times[1] - read_s) * STALE + read_s,
            "of an even number take the mean of the middle two, not the upper one": sorted(kept)[len(kept) // 2],
            "of an even number take the mean of the middle two, not the lower one": sorted(kept)[(len(kept) - 1) // 2],
        },
    )


def _median_shown(arrays: Arrays) -> str:
    """Code that makes the machine up: an input is a list, whose number says by how much its next call is faster."""
    ticks = ", ".join(write_number(time_s / STEP_S) for time_s in arrays["_calls_s"].tolist())
    make, clock = (write_number(float(arrays[name]) / STEP_S) for name in ("_make_s", "_clock_s"))
    return "\n".join(
        [
            "now = [0]  # in ticks of 2**-30 s, about a nanosecond",
            f"ticks = [{ticks}]  # of one call after the other",
            f"made = [[{1 / STALE:g}]]  # inputs, each of which has to be used before the next one is made",
            f"def make(): assert made[-1][0] > 1; now[0] += {make}; made.append([1]); return made[-1]",
            "# A call on an input that is in a cache is faster, and warms nothing up.",
            f"def call(x): now[0] += ticks[0] / x[0]; del ticks[: x[0] == 1]; x[0] = {1 / STALE:g}",
            f"def clock(): now[0] += {clock}; return (now[0] - {clock}) / 2**30  # and reading it takes time",
            calls.median_call(int(arrays["samples"]), int(arrays["warmup"])),
        ]
    )


def _fit_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Sizes from 2**`from` to 2**`to` bytes, or a few of 0, and times that rise with them, or fall."""
    low, high = case.params.get("from", 4), case.params.get("to", 27)
    sizes = np.sort(2.0 ** rng.integers(low, high + 1, case.params["points"]))
    sizes[0], sizes[-1] = 2.0**low, 2.0**high
    sizes[: case.params.get("empty", 0)] = 0
    exact = rng.uniform(1e-6, 9e-6) + sizes / rng.uniform(5e9, 3e12)
    if case.params.get("falling"):
        exact = exact[0] * (1 - 0.75 * sizes / sizes[-1])
    if case.params.get("bent"):  # faster while a cache holds it: the line meets the axis below 0
        exact *= np.sqrt(sizes / sizes[-1])
    return {"sizes_bytes": sizes, "times_s": exact * (1 + rng.uniform(0, case.params["noise"], sizes.size))}


def _fit_expect(arrays: Arrays) -> Arrays:
    """The least of the sum of squares by a solver that walks there, in units in which both unknowns are about 1."""
    sizes, times = arrays["sizes_bytes"], arrays["times_s"]
    small, slope = times.min(), times.max() / sizes.max()
    off = least_squares(
        lambda one: (one[0] * small + one[1] * slope * sizes) / times - 1,
        (1.0, 1.0),
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-15,
    )
    plain_slope, plain = np.polyfit(sizes, times, 1)
    overhead, bandwidth = calls.OVERHEAD, calls.BANDWIDTH
    said = "here errors count in seconds, not relative to the time"
    return (
        {overhead: np.array(off.x[0] * small), bandwidth: np.array(1 / (off.x[1] * slope))}
        | likely(overhead, {said: plain})
        | likely(bandwidth, {said: 1 / plain_slope, "this is seconds per byte": off.x[1] * slope})
    )


def _fit_shown(arrays: Arrays) -> str:
    sizes, times = map(write_number, arrays["sizes_bytes"].tolist()), (f"{time_s:.10g}" for time_s in arrays["times_s"])
    lists = {"sizes_bytes": ", ".join(sizes), "times_s": ", ".join(times)}
    return "\n".join([*(f"{name} = np.array([{values}], float)" for name, values in lists.items()), calls.FIT])


CHECKS = (
    Check(
        name="median_time",
        title="A timing loop",
        points=10,
        cases=(
            Case("an odd number of samples", {"samples": 5, "warmup": 3}),
            Case("an even number of samples", {"samples": 8, "warmup": 4}),
            Case("two samples, no warm-up", {"samples": 2, "warmup": 0}),
            Case("a coarse clock", {"samples": len(TICKS) + 3, "warmup": 9, "coarse": True}),
            Case("more samples", {"samples": 51, "warmup": 40}, hidden=True),
            Case("one sample", {"samples": 1, "warmup": 1}, hidden=True),
        ),
        inputs=_median_inputs,
        run=calls.median,
        partner=_made_up,
        describe=_median_shown,
        expect=_median_expect,
        compare=agree,
        first_hint="Write down, turn by turn, what happens between two readings of the clock, and which turns you "
        "keep.",
        hint="Nothing but the call happens between its two readings of the clock. Turns of the warm-up go as all "
        "others do, and are left out because they come first, not because they are slow.",
        uses=("median_time_s",),
    ),
    Check(
        name="fit",
        title="Overhead and bandwidth from times",
        points=8,
        cases=(
            Case("times on a line", {"points": 9, "noise": 0.0}),
            Case("disturbed times, and calls that move nothing", {"points": 13, "noise": 0.3, "empty": 2}),
            Case("times that rise faster than sizes", {"points": 9, "noise": 0.1, "from": 23, "bent": True}),
            Case("times that fall", {"points": 7, "noise": 0.05, "from": 23, "falling": True}),
            Case("others, up to many GB", {"points": 17, "noise": 0.5, "to": 36}, hidden=True),
        ),
        inputs=_fit_inputs,
        run=calls.fit,
        describe=_fit_shown,
        expect=_fit_expect,
        compare=partial(agree, scale=BY_SOLVER),
        first_hint="In which unit does the task count the error of a measurement: in seconds, or as a part of it?",
        hint="Each measurement is an equation p · o + q · (1 / β) = 1, which holds as nearly as it can. What are p and "
        "q of a measurement? np.linalg.lstsq solves many equations with few unknowns in the sense of least squares.",
        uses=("fit_overhead_and_bandwidth",),
    ),
)
