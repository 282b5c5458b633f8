"""Time a submission against a baseline by the judge's clock, and believe only what can be recomputed.

The timed window of a round runs from sending a fresh seed to receiving the commitments to all outputs
(`sandbox.inside.timed`). Afterwards

  * a clean process recomputes the calls: every commitment must be right within the tolerance;
  * the submission hands over the output of one call, drawn after the window: it must match its commitment and be right.

Blocks alternate: baseline, submission, baseline, submission, ..., baseline. No process of a submission is alive during
a baseline block, so none can slow it down, and each submission block uses a fresh process. Heating or filling the
device gains nothing: the fastest baseline block counts, and the first is over before any submission runs.
"""

from __future__ import annotations

import secrets
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.performance import Performance
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.trusted.compare import close, tolerance
from mlsys_grader.sandbox.inside import wire
from mlsys_grader.sandbox.inside.timed import LIMITS, derive_seed
from mlsys_grader.speed.times import Interval, Times
from mlsys_lab.errors import CourseError

MAX_OUTPUTS = 64
"""Tensors that one call may return."""
TOLERANCE_FACTOR = 4.0
"""Tolerances, as a norm, by which a commitment may be off: right outputs scatter by one or two at most. Zeros as output
pass in 6e-5 of calls in float32 and in 1 of 10 in bfloat16, and all calls must pass.
"""


def derive_seeds(seed: int, committed: np.ndarray) -> list[int]:
    """Seeds of all calls of a round, from its first seed and the commitments (calls, outputs)."""
    seeds = [seed]
    for row in committed[:-1]:
        seeds.append(derive_seed(seeds[-1], row.tolist()))
    return seeds


class CheatingError(Exception):
    """The output of a timed call is not what it had to be; the message says in which way."""


class NoAnswerError(Exception):
    """The submission's process gave no answer; the message is its own or the wire's."""


class TooSlowError(Exception):
    """A round exceeded its time limit."""


@dataclass(frozen=True)
class MeasurementConfig:
    """How much to measure.

    `rounds` and `warmup` are per block; a round lasts at least `min_round_s`. `noise`: widest interval of a median,
    relative to it, that counts as measured. `max_slowdown`: time limit of a submission's round as a multiple of the
    baseline's; `max_total_s` limits the whole submission. A process keeps up to `max_kept_bytes` of a round's outputs,
    and hands over up to `max_shown_bytes` per block: one output from each round, or from randomly chosen rounds.
    """

    rounds: int = 9
    warmup: int = 2
    blocks: int = 2
    max_blocks: int = 6
    min_round_s: float = 0.05
    max_calls: int = 4096
    max_kept_bytes: int = 1 << 30
    noise: float = 0.1
    max_slowdown: float = 50.0
    start_s: float = 120.0
    max_total_s: float = 900.0
    max_shown_bytes: int = 1 << 30


@dataclass
class TimedProcess:
    """A timed process at the other end of a channel; `orders` are sent with every request."""

    channel: socket.socket
    orders: Mapping[str, Any] = field(default_factory=dict)
    clock: Callable[[], float] = time.perf_counter

    def round(self, calls: int, limit_s: float) -> tuple[float, int, np.ndarray]:
        """Run a round: its seconds, its seed, and the commitments, finite (calls, outputs)."""
        seed = secrets.randbits(63)
        deadline = time.monotonic() + limit_s
        start = self.clock()
        room = wire.Limits(array_bytes=8 * MAX_OUTPUTS * calls)
        reply = self.request("go", {"seed": seed, "calls": calls}, deadline=deadline, limits=room)
        time_s = self.clock() - start
        committed = reply.arrays.get("p")
        if reply.kind != "done" or committed is None or committed.dtype != np.float64 or committed.ndim != 2:
            raise CheatingError("the timed process broke the protocol")
        if len(committed) != calls or not np.isfinite(committed).all():
            raise CheatingError("a timed call gave an output that is not finite, or none")
        return time_s, seed, committed

    def request(
        self,
        kind: str,
        meta: Mapping[str, Any] | None = None,
        arrays: Arrays | None = None,
        *,
        deadline: float,
        limits: wire.Limits = LIMITS,
    ) -> wire.Frame:
        """Send a request; the reply must repeat its nonce. Raises `NoAnswerError` and `TooSlowError`."""
        nonce = secrets.token_hex(16)
        request = wire.Frame(kind, {**self.orders, **(meta or {}), "nonce": nonce}, arrays or {})
        try:
            wire.send(self.channel, request, deadline=deadline)
            reply = wire.receive(self.channel, limits=limits, deadline=deadline)
        except wire.DeadlineError:
            raise TooSlowError from None
        except wire.WireError as error:
            raise NoAnswerError(str(error)) from None
        if reply.kind in ("problem", "broken", "not loaded"):
            raise NoAnswerError(": ".join(str(reply.meta[key]) for key in ("what", "got") if reply.meta.get(key)))
        if reply.meta.get("nonce") != nonce:
            raise CheatingError("the timed process sent a frame that answers no question")
        return reply


RoundResult = tuple[int, np.ndarray, int | None, wire.Frame | None]
"""A round: its seed, commitments, and the index and output of the call handed over, if any."""
Opener = Callable[[], AbstractContextManager[TimedProcess]]


@dataclass
class Comparison:
    """One submission against one baseline.

    `bounds` are processes that measure the device's limits, if needed. `submission` opens a process of it, `guard` is a
    context manager around the life of each.
    """

    performance: Performance
    library: TimedProcess
    empty: TimedProcess
    submission: Opener
    bounds: Sequence[TimedProcess] = ()
    config: MeasurementConfig = field(default_factory=MeasurementConfig)
    guard: Callable[[], AbstractContextManager[None]] = nullcontext
    times: Times = field(default_factory=Times)
    calls: int = 0
    """Calls per round; 0 until calibrated."""
    size_bytes: int = 0
    """Bytes of one call's output, known once `calls` is."""

    def run(self) -> Times:
        """Run all blocks.

        Raises `CheatingError`, `NoAnswerError`, `TooSlowError` for the submission, `CourseError` for the course's side.
        """
        config, self._until = self.config, time.monotonic() + self.config.max_total_s
        if not self.calls:
            self._run_own_side(self._calibrate_calls)
        self._run_own_side(self._baseline_block)
        for block in range(config.max_blocks):
            with self.guard():
                results = self._submission_block()
            for one in results:
                self._verify(*one)
            self._run_own_side(self._baseline_block)
            if block + 1 >= config.blocks and self.times.widest <= config.noise:
                break
        return self.times

    def _run_own_side(self, part: Callable[[], None]) -> None:
        try:
            part()
        except (CheatingError, NoAnswerError, TooSlowError) as error:
            raise CourseError("the course's own side of a measurement failed", got=error) from error

    def _calibrate_calls(self) -> None:
        """Choose the calls per round: enough to fill a round, and to stand out from the scatter of empty rounds."""
        self.size_bytes = self.library.request("size", deadline=time.monotonic() + self.config.start_s).meta["bytes"]
        self.calls, most = 1, max(min(self.config.max_calls, self.config.max_kept_bytes // max(self.size_bytes, 1)), 1)
        while True:
            full = [self._time_round(self.library) for _ in range(3)]
            empty = [self._time_round(self.empty) for _ in range(3)]
            lasts = statistics.median(full) >= max(self.config.min_round_s, 10 * statistics.stdev(empty))
            if lasts or self.calls >= most:
                return
            self.calls = min(2 * self.calls, most)

    def _time_round(self, process: TimedProcess) -> float:
        return process.round(self.calls, self.config.start_s)[0]

    def _baseline_block(self) -> None:
        """Run rounds of the clean processes in turn; the baseline is a library call's time minus the empty one's."""
        samples = []
        processes = [self.library, self.empty, *self.bounds]
        for turn in range(-self.config.warmup, self.config.rounds):
            order = processes[turn % len(processes) :] + processes[: turn % len(processes)]
            times = {id(process): self._time_round(process) / self.calls for process in order}
            if turn < 0:
                continue
            empty = times[id(self.empty)]
            self.times.empty.append(empty)
            bounds = [times[id(process)] for process in self.bounds]
            samples.append(max(bounds) if bounds else times[id(self.library)] - empty)
        self.times.baseline.append(Interval.of(samples))

    def _submission_block(self) -> list[RoundResult]:
        """Run the rounds of one process of the submission. Verification waits until it is dead and disturbs nothing."""
        config = self.config
        slowest_s = max(block.high for block in self.times.baseline) + max(self.times.empty)
        limit_s = config.max_slowdown * self.calls * slowest_s + config.min_round_s
        turns = range(-config.warmup, config.rounds)
        shown = secrets.SystemRandom().sample(
            turns, min(max(config.max_shown_bytes // max(self.size_bytes, 1), 1), len(turns))
        )
        results: list[RoundResult] = []
        with self.submission() as process:
            for turn in turns:
                patience_s = config.start_s if turn == -config.warmup else limit_s  # the first call may compile
                time_s, seed, committed = process.round(self.calls, self._remaining_s(patience_s))
                call_index = secrets.randbelow(self.calls) if turn in shown else None
                output = None
                if call_index is not None:
                    deadline = time.monotonic() + self._remaining_s(config.start_s)
                    room = wire.Limits(array_bytes=2 * self.size_bytes)  # half precision crosses as float32
                    output = process.request("show", {"call_index": call_index}, deadline=deadline, limits=room)
                results.append((seed, committed, call_index, output))
                if turn >= 0:
                    self.times.submission.append(time_s / self.calls)
        return results

    def _remaining_s(self, limit_s: float) -> float:
        """Limit `limit_s` to the time left for this submission."""
        return max(min(limit_s, self._until - time.monotonic()), 0.0)

    def _verify(self, seed: int, committed: np.ndarray, call_index: int | None, shown: wire.Frame | None) -> None:
        """Raise `CheatingError` unless all commitments of a round, and the output handed over, are right."""
        arrays = shown.arrays if shown is not None else {}
        request = {"seeds": derive_seeds(seed, committed), "show": call_index}
        try:
            right = self.library.request("expect", request, arrays, deadline=time.monotonic() + self.config.start_s)
        except (NoAnswerError, TooSlowError) as error:
            raise CourseError("the course's own side of a measurement failed", got=error) from error
        allowed = self.performance.scale * right.arrays["norm"] * right.arrays["tolerance"]
        if (
            committed.shape != allowed.shape
            or not (np.abs(committed - right.arrays["p"]) <= TOLERANCE_FACTOR * allowed).all()
        ):
            raise CheatingError("a timed call gave a wrong output")
        if shown is None or call_index is None:
            return
        dtypes, scale = right.meta["dtypes"], self.performance.scale
        if shown.kind != "shown" or shown.meta.get("dtypes") != dtypes:
            raise CheatingError("a timed call gave an output of another dtype")
        if not (np.abs(committed[call_index] - right.arrays["again"]) <= allowed[call_index]).all():
            raise CheatingError("the output of a timed call is not the one that it was timed with")
        expected = {name: array for name, array in right.arrays.items() if name.startswith("out")}
        for (name, array), dtype in zip(expected.items(), dtypes, strict=True):
            wide = scale * tolerance(dtype) / (tolerance(array.dtype) or 1.0)  # bfloat16 travels as float32
            if (mismatch := close({name: shown.arrays[name]}, {name: array}, scale=wide)) is not None:
                raise CheatingError(f"a timed call gave a wrong output: {mismatch.what}")
