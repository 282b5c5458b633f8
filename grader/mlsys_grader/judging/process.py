"""One process of a submission in the sandbox, as the judge talks to it: loaded once, then asked case after case."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from mlsys_checks.sandboxed.kernel_sources import give_sources, name_sources
from mlsys_checks.sandboxed.spec import Arrays, Check, Mismatch, call_name
from mlsys_checks.trusted.artifact import Artifact
from mlsys_grader.judging.problem import Ending
from mlsys_grader.sandbox.inside import watch, wire
from mlsys_grader.sandbox.launcher import Job

MEMORY_BYTES = 3 << 30
"""What a submission's process may map unless a check sets a budget."""
RANK_MEMORY_BYTES = 192 << 20
"""What each process beyond the first may map. Eight ranks together: 4.3 GiB."""
RANK_INHERITED_BYTES = 128 << 20
"""What its children may unshare of the memory that it had before; of the first process's, `watch.INHERITED_BYTES`."""
MEMORY_SLACK_BYTES = 64 << 20
"""Beyond a check's own budget, which counts tensors only: room for the interpreter, inputs and library workspaces."""
GRACE_S = 2.0
"""Beyond a time limit, before the judge looks: the sandbox's own alarm tells more, so it may come first."""
LOADING, LOADING_S = 2, 5.0
"""Times the limit of a check that loading the exported cells may take, and the seconds that this limit has at least.

A statement has half of what is left.
"""
SHORT_S = 0.5
"""A process that was waited for no longer than this is taken to have been at work throughout."""
MIN_POLL_S = 0.2
"""How soon the judge looks again, at the earliest."""
WALL_CLOCK_FACTOR = 20.0
"""Times a time limit by the clock, after which nobody waits on: other work may keep the machine from a submission."""


@dataclass(frozen=True)
class _Observation:
    """What a look at a process found, in seconds since something: how long it was waited for, had the processor, and
    was kept from it; or the judge was, who then hears it late, as often as messages cross.
    """

    spent_s: float
    cpu_s: float
    waited_s: float


class Process:
    """A process that was given one submission: only its kernels where `traced`, else all exported cells.

    `kernel_sources` names functions that give texts there which another process was asked for.

    Its limits are of time at work: seconds in which it ran, or slept, but not those in which it was ready to run and
    other work kept the machine from it. `busy_s` are the seconds, by the judge's clock, that it was waited for, and
    `worked_s`, once it is settled, those of them at work. Whatever other work there is, no answer is awaited after
    `deadline` on the monotonic clock. `checks_run` are the names of the checks that it was asked. Of several processes for
    the ranks of a program all but the first have little memory, so that the sum is bounded.
    """

    def __init__(
        self,
        job: Job,
        *,
        traced: bool,
        time_factor: float,
        kernel_sources: tuple[str, ...] = (),
        deadline: float = inf,
        is_first: bool = True,
    ) -> None:
        self.job, self.traced, self.kernel_sources, self.deadline = job, traced, kernel_sources, deadline
        self.checks_run: set[str] = set()
        self.busy_s = self.worked_s = self._at_limit_s = 0.0
        self._time_factor, self._is_first = time_factor, is_first
        self._sent_at = self._limit_s = self._spent_s = self._next_poll_s = 0.0
        self._first_observation: _Observation | None = None
        self._max_bytes = 0

    def send_artifact(
        self,
        artifact: Artifact,
        check: Check,
        checks: Sequence[Check],
        kernel_sources: Mapping[str, str],
        endless: Collection[int],
    ) -> None:
        """Have the artifact loaded within LOADING time limits of `check`, with budgets for all of `checks`, and texts.

        Nothing of it has run before the limits of its process are set. `endless` are the numbers of statements that
        did not end in another process, and are skipped. Raises `wire.WireError`.
        """
        budget = MEMORY_BYTES if self._is_first else RANK_MEMORY_BYTES
        if check.memory_bytes is not None:
            budget = check.memory_bytes + MEMORY_SLACK_BYTES
        # CPU time is the kernel's own word on an endless loop, in case nobody is left to kill by the clock.
        limit_s = LOADING * max(check.time_limit_s, LOADING_S) * self._time_factor
        cpu_s = sum(one.time_limit_s * (len(one.cases) + 1) for one in checks) * self._time_factor + limit_s
        order = {
            "name": artifact.name,
            "source": artifact.source,
            "elsewhere": artifact.elsewhere,
            "traced": self.traced,
            "time_limit_s": limit_s,
            "memory_bytes": budget,
            "inherited_bytes": watch.INHERITED_BYTES if self._is_first else RANK_INHERITED_BYTES,
            "cpu_s": int(cpu_s) + 5,
            "kernel_sources": dict(kernel_sources),
            "endless": sorted(endless),
        }
        self._send("job", order, {}, check, limit_s)

    def send_case(self, check: Check, inputs: Arrays, random_seed: int) -> None:
        """Put a case of a check; of one with a partner questions come before the answer. Raises `wire.WireError`."""
        self._send_case("case" if check.partner is None else "case with partner", check, inputs, random_seed, {})

    def request_sources(self, check: Check, random_seed: int) -> None:
        """Ask for the texts that a check needs. Raises `wire.WireError`."""
        wrapped = replace(check, run=give_sources, uses=check.kernel_sources, memory_bytes=None, partner=None)
        self._send_case("case", wrapped, name_sources(check.kernel_sources), random_seed, {})

    def send_rank(
        self, check: Check, inputs: Arrays, random_seed: int, rank: int, size: int, *, has_deferred: bool
    ) -> None:
        """Put a case of a check to this process as rank `rank` of `size`; messages come before the answer.

        `has_deferred`: the rank has to ask for some of its inputs. Raises `wire.WireError`.
        """
        self._send_case("rank", check, inputs, random_seed, {"rank": rank, "size": size, "has_deferred": has_deferred})

    def reply(self, frame: wire.Frame) -> None:
        """Reply to a message that came before the answer; its time at work goes on. Raises `wire.WireError`."""
        self._sent_at = time.monotonic()
        wire.send(self.job.channel, frame, deadline=self._sent_at + self._limit_s + GRACE_S)

    def _send_case(self, kind: str, check: Check, inputs: Arrays, random_seed: int, rank_meta: dict[str, int]) -> None:
        limit_s = check.time_limit_s * self._time_factor
        request = {
            "call": call_name(check.run),
            "uses": check.uses,
            "time_limit_s": limit_s,
            "memory_bytes": check.memory_bytes,
            "random_seed": random_seed,
            **rank_meta,
        }
        self._send(kind, request, inputs, check, limit_s)

    def receive(self) -> wire.Frame:
        """Wait for the answer to what was sent last, until its time at work is over. Raises `wire.WireError`.

        That may be a message of a rank, or a question to a partner, too: these do not prolong its time.
        """
        try:
            self._await_answer()
            deadline = time.monotonic() + self._limit_s + GRACE_S
            return self.job.receive(max_bytes=self._max_bytes, deadline=deadline)
        finally:
            now = time.monotonic()
            waited_s, self._sent_at = now - self._sent_at, now
            self.busy_s, self._spent_s = self.busy_s + waited_s, self._spent_s + waited_s

    def settle(self) -> None:
        """Find out how much of the time that it was waited for it was at work; before it is let go.

        Other work keeps the judge, too, from hearing it, as often as it crosses the channel: so of all the time that it
        was waited for as large a share counts as it got of the processor when it wanted it, at least 1 in PATIENCE.
        """
        self.worked_s = self.busy_s
        if self.busy_s > SHORT_S and (used := self.job.time_used()) is not None:
            wanted_s = used.cpu_s + used.waited_s
            share = max(used.cpu_s / wanted_s, 1 / WALL_CLOCK_FACTOR) if wanted_s > 0 else 1.0
            self.worked_s = max(used.cpu_s, self.busy_s * share, self._at_limit_s)

    def _await_answer(self) -> None:
        """Return when something has come. Raises `wire.DeadlineError` for a process that has been at work too long.

        Seconds count in which it was waited for since it was asked, those before each of its messages too.
        """
        while True:
            spent_s = self._spent_s + time.monotonic() - self._sent_at
            if (
                spent_s >= self._next_poll_s
            ):  # also if something has come: or one piece after another could come in time
                self._observe(spent_s)
            if select.select([self.job.channel], [], [], max(0.0, self._next_poll_s - spent_s))[0]:
                return

    def _observe(self, spent_s: float) -> None:
        """Look whether the process has been at work too long, and say when to look again.

        That is reckoned from the first look on, when as much time has passed as it may be at work.
        """
        last_s = min(WALL_CLOCK_FACTOR * self._limit_s + GRACE_S, spent_s + self.deadline - time.monotonic())
        used, worked_s = self.job.time_used(), 0.0
        if used is not None:
            observation = _Observation(spent_s, used.cpu_s, used.waited_s + read_own_wait_s())
            self._first_observation = first = self._first_observation or observation
            passed_s, waited_s = observation.spent_s - first.spent_s, observation.waited_s - first.waited_s
            worked_s = max(observation.cpu_s - first.cpu_s, passed_s - waited_s)
        if spent_s >= last_s or worked_s >= self._limit_s:
            self._at_limit_s += self._limit_s
            raise wire.DeadlineError("it has been at work too long")
        self._next_poll_s = (
            min(last_s, spent_s + max(MIN_POLL_S, self._limit_s - worked_s)) if used is not None else last_s
        )

    def explain(self, error: wire.WireError, who: str) -> tuple[Mismatch, Ending]:
        """Why no answer came to what was sent last, told of `who`, the part of the submission that was to give it."""
        if isinstance(error, wire.DeadlineError):
            limit = f"{self._limit_s:g} s"
            late = Mismatch(f"{who} did not come to an end", f"no answer after {limit}", f"an answer within {limit}")
            return late, Ending.TIMEOUT
        if isinstance(error, wire.TooLargeError):
            return Mismatch(
                "its answer is too large", str(error), f"at most {self._max_bytes:,} bytes"
            ), Ending.ANSWER_TOO_LARGE
        if isinstance(error, wire.ClosedError):
            exit = self.job.read_exit()
            if exit.excess:
                return Mismatch(f"{who} needs {exit.excess}", str(exit), "less"), Ending.WRONG
            gone = Mismatch(f"{who} ended the process instead of giving an answer", str(exit), "an answer")
            return gone, Ending.KILLED if exit.was_killed else Ending.WRONG
        broken = Mismatch(f"{who} wrote to the grader's own channel", str(error), "an answer returned by a function")
        return broken, Ending.WRONG

    def _send(self, kind: str, meta: dict[str, Any], arrays: Arrays, check: Check, limit_s: float) -> None:
        self._sent_at, self._limit_s = time.monotonic(), limit_s
        self._spent_s, self._next_poll_s, self._first_observation = 0.0, self._limit_s + GRACE_S, None
        self._max_bytes = check.answer_bytes
        self.job.send(kind, meta, arrays, deadline=self._sent_at + self._limit_s + GRACE_S)


def read_own_wait_s() -> float:
    """Seconds that threads of this process, the judge's, were ready to run while others did; 0 where nobody counts."""
    waits = (_read_words(path)[1:2] for path in Path("/proc/self/task").glob("*/schedstat"))
    return sum(int(wait[0]) for wait in waits if wait) / 1e9


def _read_words(path: Path) -> list[str]:
    with contextlib.suppress(OSError):  # the thread has ended
        return path.read_text(encoding="ascii").split()
    return []


def read_problem(reply: wire.Frame) -> Mismatch:
    """What the sandbox says went wrong: text from a hostile place, used as text only."""
    what, got, expected = (str(reply.meta.get(key, "")) for key in ("what", "got", "expected"))
    return Mismatch(what or "the submission gave no answer", got, expected)


def read_endless(reply: wire.Frame) -> set[int]:
    """Numbers of the statements that did not end, as a submission's process says: others that it loads skip them."""
    report = reply.meta.get("endless")
    return {number for number in report if type(number) is int} if isinstance(report, list) else set()
