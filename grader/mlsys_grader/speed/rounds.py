"""Time a submission against a baseline by the judge's own clock, and believe only what can be computed again.

A round is one window on the judge's clock: from sending a seed that was drawn at that moment to holding the numbers
that commit the other process to all outputs of the round (`sandbox.inside.timed`). Afterwards

  * a clean process computes the same calls: every number of every call must be right within the tolerance;
  * the output of one call, drawn after the window, is handed over: it must be what was committed to, and right.

Rounds come in blocks, baseline, submission, baseline, submission, ..., baseline. No process of a submission is alive
in a baseline's block, so that none can slow it, and each block of the submission is a process of its own. What heats
or fills the device for those that come after gains nothing: the baseline counts by its fastest block, and the first is
over before any submission runs.
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

MOST_OUTPUTS = 64
"""Tensors that one call may give back."""
LOOSE = 4.0
"""How many tolerances, as a norm, a committed number may be off: right outputs scatter by one or two at the very most.
An output of zeros is accepted in 6e-5 of calls in float32 and in 1 of 10 in bfloat16; all calls must be."""


def derive_seeds(seed: int, committed: np.ndarray) -> list[int]:
    """Derive the seeds of all calls of a round, from its first seed and the numbers (calls, outputs) committed to."""
    seeds = [seed]
    for row in committed[:-1]:
        seeds.append(derive_seed(seeds[-1], row.tolist()))
    return seeds


class Cheated(Exception):
    """A timed call's output is not what it had to be; the text says in which way."""


class Broken(Exception):
    """The submission's process gave no answer: its own word on the trouble, or what the wire said."""


class TooSlow(Exception):
    """A round did not come to an end in time."""


@dataclass(frozen=True)
class Effort:
    """How much to measure.

    Rounds are per block; a round lasts `least_round_s` or longer; `noise` is the widest interval of a median, relative
    to it, that still counts as measured; `patience` is how many times as long as the baseline's a submission's round
    may last, `most_s` how long all of a submission may. A process keeps up to `held_bytes` of a round's outputs, and
    hands over up to `shown_bytes` in a block: an output of each round, or of rounds drawn by lot.
    """

    rounds: int = 9
    warmup: int = 2
    blocks: int = 2
    most_blocks: int = 6
    least_round_s: float = 0.05
    most_calls: int = 4096
    held_bytes: int = 1 << 30
    noise: float = 0.1
    patience: float = 50.0
    start_s: float = 120.0
    most_s: float = 900.0
    shown_bytes: int = 1 << 30


@dataclass
class Party:
    """A timed process at the other end of a channel; `orders` go with every question."""

    channel: socket.socket
    orders: Mapping[str, Any] = field(default_factory=dict)
    clock: Callable[[], float] = time.perf_counter

    def round(self, calls: int, limit_s: float) -> tuple[float, int, np.ndarray]:
        """Seconds of a round of so many calls, its seed, and what was committed to: finite, (calls, outputs)."""
        seed = secrets.randbits(63)
        deadline = time.monotonic() + limit_s
        start = self.clock()
        room = wire.Limits(array_bytes=8 * MOST_OUTPUTS * calls)
        reply = self.request("go", {"seed": seed, "calls": calls}, deadline=deadline, limits=room)
        time_s = self.clock() - start
        committed = reply.arrays.get("p")
        if reply.kind != "done" or committed is None or committed.dtype != np.float64 or committed.ndim != 2:
            raise Cheated("the timed process broke the protocol")
        if len(committed) != calls or not np.isfinite(committed).all():
            raise Cheated("a timed call gave an output that is not finite, or none")
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
        """Put a question; its answer must repeat a number drawn for it alone. Raises `Broken` and `TooSlow`."""
        nonce = secrets.token_hex(16)
        question = wire.Frame(kind, {**self.orders, **(meta or {}), "nonce": nonce}, arrays or {})
        try:
            wire.send(self.channel, question, deadline=deadline)
            reply = wire.receive(self.channel, limits=limits, deadline=deadline)
        except wire.DeadlineError:
            raise TooSlow from None
        except wire.WireError as error:
            raise Broken(str(error)) from None
        if reply.kind in ("problem", "broken", "not loaded"):
            raise Broken(": ".join(str(reply.meta[key]) for key in ("what", "got") if reply.meta.get(key)))
        if reply.meta.get("nonce") != nonce:
            raise Cheated("the timed process sent a frame that answers no question")
        return reply


Played = tuple[int, np.ndarray, int | None, wire.Frame | None]
"""A round: its seed, what was committed to, and of one call its place and output, where it was asked for."""
Opener = Callable[[], AbstractContextManager[Party]]


@dataclass
class Match:
    """One submission against one baseline.

    `bounds` are the parties that show what the device can do, if asked for. `submission` opens a process of it,
    `around` is what to do around the life of each.
    """

    performance: Performance
    library: Party
    null: Party
    submission: Opener
    bounds: Sequence[Party] = ()
    effort: Effort = field(default_factory=Effort)
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    times: Times = field(default_factory=Times)
    calls: int = 0
    """Calls per round; 0: to be found."""
    size_bytes: int = 0
    """Bytes of one call's output; known once `calls` is."""

    def play(self) -> Times:
        """All blocks. Raises `Cheated`, `Broken`, `TooSlow` of the submission, `CourseError` of the course's side."""
        effort, self._until = self.effort, time.monotonic() + self.effort.most_s
        if not self.calls:
            self._ours(self._find_calls)
        self._ours(self._baseline_block)
        for block in range(effort.most_blocks):
            with self.around():
                played = self._submission_block()
            for one in played:
                self._verify(*one)
            self._ours(self._baseline_block)
            if block + 1 >= effort.blocks and self.times.widest <= effort.noise:
                break
        return self.times

    def _ours(self, part: Callable[[], None]) -> None:
        try:
            part()
        except (Cheated, Broken, TooSlow) as error:
            raise CourseError("the course's own side of a measurement failed", got=error) from error

    def _find_calls(self) -> None:
        """Calls per round: enough for a round to last, and to stand out from what rounds of nothing differ by."""
        self.size_bytes = self.library.request("size", deadline=time.monotonic() + self.effort.start_s).meta["bytes"]
        self.calls, most = 1, max(min(self.effort.most_calls, self.effort.held_bytes // max(self.size_bytes, 1)), 1)
        while True:
            full = [self._timed(self.library) for _ in range(3)]
            empty = [self._timed(self.null) for _ in range(3)]
            lasts = statistics.median(full) >= max(self.effort.least_round_s, 10 * statistics.stdev(empty))
            if lasts or self.calls >= most:
                return
            self.calls = min(2 * self.calls, most)

    def _timed(self, party: Party) -> float:
        return party.round(self.calls, self.effort.start_s)[0]

    def _baseline_block(self) -> None:
        """Rounds of the clean processes in turns; the baseline is what a call of the library takes beyond null."""
        samples = []
        parties = [self.library, self.null, *self.bounds]
        for turn in range(-self.effort.warmup, self.effort.rounds):
            order = parties[turn % len(parties) :] + parties[: turn % len(parties)]
            times = {id(party): self._timed(party) / self.calls for party in order}
            if turn < 0:
                continue
            null = times[id(self.null)]
            self.times.null.append(null)
            bounds = [times[id(party)] for party in self.bounds]
            samples.append(max(bounds) if bounds else times[id(self.library)] - null)
        self.times.baseline.append(Interval.of(samples))

    def _submission_block(self) -> list[Played]:
        """Rounds of one process of the submission. They are looked into once it is dead and can disturb nobody."""
        effort = self.effort
        slowest_s = max(block.high for block in self.times.baseline) + max(self.times.null)
        limit_s = effort.patience * self.calls * slowest_s + effort.least_round_s
        turns = range(-effort.warmup, effort.rounds)
        shown = secrets.SystemRandom().sample(
            turns, min(max(effort.shown_bytes // max(self.size_bytes, 1), 1), len(turns))
        )
        played: list[Played] = []
        with self.submission() as party:
            for turn in turns:
                patience_s = effort.start_s if turn == -effort.warmup else limit_s  # it may compile at first
                time_s, seed, committed = party.round(self.calls, self._within(patience_s))
                place = secrets.randbelow(self.calls) if turn in shown else None
                output = None
                if place is not None:
                    deadline = time.monotonic() + self._within(effort.start_s)
                    room = wire.Limits(array_bytes=2 * self.size_bytes)  # half precision crosses as float32
                    output = party.request("show", {"place": place}, deadline=deadline, limits=room)
                played.append((seed, committed, place, output))
                if turn >= 0:
                    self.times.submission.append(time_s / self.calls)
        return played

    def _within(self, limit_s: float) -> float:
        """A limit cut to what is left of the time for the whole of a submission."""
        return max(min(limit_s, self._until - time.monotonic()), 0.0)

    def _verify(self, seed: int, committed: np.ndarray, place: int | None, shown: wire.Frame | None) -> None:
        """Raise `Cheated` unless every call of a round is vouched for, and the one handed over, if any, is right."""
        arrays = shown.arrays if shown is not None else {}
        question = {"seeds": derive_seeds(seed, committed), "show": place}
        try:
            right = self.library.request("expect", question, arrays, deadline=time.monotonic() + self.effort.start_s)
        except (Broken, TooSlow) as error:
            raise CourseError("the course's own side of a measurement failed", got=error) from error
        allowed = self.performance.scale * right.arrays["norm"] * right.arrays["tolerance"]
        if committed.shape != allowed.shape or not (np.abs(committed - right.arrays["p"]) <= LOOSE * allowed).all():
            raise Cheated("a timed call gave a wrong output")
        if shown is None or place is None:
            return
        dtypes, scale = right.meta["dtypes"], self.performance.scale
        if shown.kind != "shown" or shown.meta.get("dtypes") != dtypes:
            raise Cheated("a timed call gave an output of another dtype")
        if not (np.abs(committed[place] - right.arrays["again"]) <= allowed[place]).all():
            raise Cheated("the output of a timed call is not the one that it was timed with")
        expected = {name: array for name, array in right.arrays.items() if name.startswith("out")}
        for (name, array), dtype in zip(expected.items(), dtypes, strict=True):
            wide = scale * tolerance(dtype) / (tolerance(array.dtype) or 1.0)  # bfloat16 travels as float32
            if (mismatch := close({name: shown.arrays[name]}, {name: array}, scale=wide)) is not None:
                raise Cheated(f"a timed call gave a wrong output: {mismatch.what}")
