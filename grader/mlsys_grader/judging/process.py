"""One sandboxed process of a submission, as the judge drives it: load once, then run case after case."""

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
"""Memory that a submission's process may map unless a check sets a budget."""
RANK_MEMORY_BYTES = 192 << 20
"""Memory that each process beyond rank 0 may map: 4.3 GiB in all for eight ranks."""
RANK_INHERITED_BYTES = 128 << 20
"""Inherited memory that a rank's children may unshare; for rank 0 it is `watch.INHERITED_BYTES`."""
MEMORY_SLACK_BYTES = 64 << 20
"""Allowance beyond a check's budget, which counts tensors only, for the interpreter, inputs and library workspaces."""
GRACE_S = 2.0
"""Time beyond a limit before the judge looks: the sandbox's own alarm gives a better message, so it may come first."""
LOADING, LOADING_S = 2, 5.0
"""Time limit for loading the exported cells, as a multiple of the check's limit, and the minimum of that limit in
seconds.

One statement may take half of what is left.
"""
SHORT_S = 0.5
"""A wait up to this long counts as work throughout."""
MIN_POLL_S = 0.2
"""Minimum time between two looks at a process."""
WALL_CLOCK_FACTOR = 20.0
"""Wall-clock limit as a multiple of a time limit, however busy the machine is."""


@dataclass(frozen=True)
class _Observation:
    """Seconds at one look at a process: time since the request, CPU time, and time it was kept waiting for a CPU.

    The judge's own waiting for a CPU counts too: it delays each message.
    """

    spent_s: float
    cpu_s: float
    waited_s: float


class Process:
    """A sandboxed process that holds one submission: only its kernels if `traced`, else all exported cells.

    `kernel_sources` names functions whose results another process produced and this one receives as data.

    Limits are of time at work: running or sleeping, not ready to run while other processes had the CPU. `busy_s` is the
    time that the judge waited for it, `worked_s` (after `settle`) the part of it at work. Nothing is awaited beyond
    `deadline` on the monotonic clock. `checks_run` names the checks that it has run. Of several ranks only the first
    has much memory, so that the total is bounded.
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
        """Request loading of the artifact within LOADING time limits of `check`, with budgets for all of `checks`.

        Nothing of it runs before the limits are set. `endless` are numbers of statements to skip because they never
        ended in another process. Raises `wire.WireError`.
        """
        budget = MEMORY_BYTES if self._is_first else RANK_MEMORY_BYTES
        if check.memory_bytes is not None:
            budget = check.memory_bytes + MEMORY_SLACK_BYTES
        # The kernel's CPU limit ends an endless loop even if the judge is gone.
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
        """Request one case of a check; with a partner, queries come before the answer. Raises `wire.WireError`."""
        self._send_case("case" if check.partner is None else "case with partner", check, inputs, random_seed, {})

    def request_sources(self, check: Check, random_seed: int) -> None:
        """Request the kernel sources that a check needs. Raises `wire.WireError`."""
        wrapped = replace(check, run=give_sources, uses=check.kernel_sources, memory_bytes=None, partner=None)
        self._send_case("case", wrapped, name_sources(check.kernel_sources), random_seed, {})

    def send_rank(
        self, check: Check, inputs: Arrays, random_seed: int, rank: int, size: int, *, has_deferred: bool
    ) -> None:
        """Request one case as rank `rank` of `size`; messages come before the answer. Raises `wire.WireError`.

        `has_deferred`: some inputs are deferred until the rank reveals them.
        """
        self._send_case("rank", check, inputs, random_seed, {"rank": rank, "size": size, "has_deferred": has_deferred})

    def reply(self, frame: wire.Frame) -> None:
        """Reply to a message before the answer; the process's clock keeps running. Raises `wire.WireError`."""
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
        """Wait for the next frame until the time at work is used up. Raises `wire.WireError`.

        A rank's message or a query to a partner does not extend the time.
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
        """Determine the time at work, before the process is released.

        Other load delays the judge as well, once per message, so the waiting time is scaled by the fraction of CPU time
        that the process got of what it wanted, at least 1 / WALL_CLOCK_FACTOR.
        """
        self.worked_s = self.busy_s
        if self.busy_s > SHORT_S and (used := self.job.time_used()) is not None:
            wanted_s = used.cpu_s + used.waited_s
            share = max(used.cpu_s / wanted_s, 1 / WALL_CLOCK_FACTOR) if wanted_s > 0 else 1.0
            self.worked_s = max(used.cpu_s, self.busy_s * share, self._at_limit_s)

    def _await_answer(self) -> None:
        """Return when a frame is there. Raises `wire.DeadlineError` once the process has been at work too long.

        Time counts from the request on, including the time before each message.
        """
        while True:
            spent_s = self._spent_s + time.monotonic() - self._sent_at
            if spent_s >= self._next_poll_s:  # even if data has arrived, or a slow trickle would reset the clock
                self._observe(spent_s)
            if select.select([self.job.channel], [], [], max(0.0, self._next_poll_s - spent_s))[0]:
                return

    def _observe(self, spent_s: float) -> None:
        """Check whether the process has been at work too long, and schedule the next look.

        Work counts from the first look on, which comes when as much time has passed as it may work.
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
        """Describe why no answer came, for the part of the submission called `who`, and how the attempt ended."""
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
    """Seconds that this process's threads were ready to run while others ran; 0 where the kernel does not count it."""
    waits = (_read_words(path)[1:2] for path in Path("/proc/self/task").glob("*/schedstat"))
    return sum(int(wait[0]) for wait in waits if wait) / 1e9


def _read_words(path: Path) -> list[str]:
    with contextlib.suppress(OSError):  # the thread has ended
        return path.read_text(encoding="ascii").split()
    return []


def read_problem(reply: wire.Frame) -> Mismatch:
    """Read the problem that a sandbox reports: untrusted text, used as text only."""
    what, got, expected = (str(reply.meta.get(key, "")) for key in ("what", "got", "expected"))
    return Mismatch(what or "the submission gave no answer", got, expected)


def read_endless(reply: wire.Frame) -> set[int]:
    """Read the numbers of statements that a process reports as endless; other processes skip them."""
    report = reply.meta.get("endless")
    return {number for number in report if type(number) is int} if isinstance(report, list) else set()
