"""Performance points: who may be timed here, on what, and what comes of it.

The processes that make up the baseline run the course's own code only, outside the sandbox.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from mlsys_checks.sandboxed.performance import Performance
from mlsys_grader.judging.performance import NO_CUDA, REASON, PerformanceVerdict, has_device, leave_unmeasured
from mlsys_grader.paths import IMPORT_PATH
from mlsys_grader.sandbox.contents import make_environment
from mlsys_grader.sandbox.gpu import Gpu
from mlsys_grader.speed.rounds import Broken, Cheated, Effort, Match, Opener, Party, TooSlow
from mlsys_grader.speed.times import Interval, Times
from mlsys_lab.errors import CourseError, InputError, MissingToolError
from mlsys_lab.hardware import device as device_named

MEMORY_SLACK_BYTES = 512 << 20
"""By how much less device memory may be free after a submission than before: the clean processes' own caches grow."""
MEMORY_WAIT_S = 20.0


class Bench:
    """Where the performance points of one check are measured, submission after submission; a `with` block holds it.

    Whoever opens one holds the device (`speed.devices`). `checks` is the module of the lab's checks, to be found with
    `path` in front; `gpu` the one to use, the machine's first if None. Raises `MissingToolError` without the device,
    `CourseError` where the course's own side cannot start.
    """

    def __init__(
        self, performance: Performance, checks: str, check: str, path: list[str], effort: Effort, gpu: Gpu | None = None
    ) -> None:
        self.performance, self.effort, self._gpu = performance, effort, gpu or Gpu()
        self.device = ""
        self._order = {"path": path, "checks": checks, "check": check, "device": self.torch_device}
        self._first: Interval | None = None
        self._calls = self._size_bytes = 0
        self._clean = ExitStack()
        self._parties: list[Party] = []

    @property
    def torch_device(self) -> str:
        """The device by torch's name, on both sides of a measurement."""
        return self._gpu.torch_device if self.performance.device == "cuda" else self.performance.device

    def __enter__(self) -> Bench:
        if not has_device(self.performance.device):
            raise MissingToolError(NO_CUDA)
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        with ExitStack() as stack:
            for role in self._roles():
                order = {**self._order, "role": role}
                party, self.device = stack.enter_context(_clean(order, self.effort.start_s, self._gpu))
                if not self.device:
                    raise MissingToolError(NO_CUDA)
                self._parties.append(party)
            self._clean = stack.pop_all()

    def _stop(self) -> None:
        self._parties.clear()
        self._clean.close()

    def _roles(self) -> list[str]:
        work = self.performance.work
        if self.performance.against == "library" or work is None:
            return ["library", "null"]
        return ["library", "null", *(["copy"] if work.size_bytes else []), *(["product"] if work.flops else [])]

    def measure(self, submission: Opener) -> PerformanceVerdict:
        """Measure one submission. Never raises for what it does.

        Where the course's own side fails, which a submission that fills or upsets the device can bring about, nothing
        is measured, and the next submission finds fresh processes.
        """
        start = time.monotonic()
        verdict = self._play(submission)
        return replace(verdict, time_s=time.monotonic() - start)

    def _play(self, submission: Opener) -> PerformanceVerdict:
        if not self._parties:
            self._start()
        library, null, *bounds = self._parties
        match = Match(self.performance, library, null, submission, bounds, self.effort, lambda: _memory_back(null))
        match.calls, match.size_bytes = self._calls, self._size_bytes
        if self._first is not None:  # from before any submission: none can have slowed the device by then
            match.times.baseline.append(self._first)
        try:
            times = match.play()
        except Cheated as error:
            return self._nothing(str(error), suspect=str(error))
        except Broken as error:
            return self._nothing(f"the timed code gave no answer: {error}")
        except TooSlow:
            return self._nothing(f"a call takes over {self.effort.patience:g} times as long as it should")
        except CourseError as error:
            self._stop()
            return leave_unmeasured(self.performance, f"the measurement itself failed: {error}", self.device)
        finally:
            self._first = self._first or next(iter(match.times.baseline), None)
            if self._first is not None:
                self._calls, self._size_bytes = match.calls, match.size_bytes
        return decide(self.performance, times, self.device, self.effort)

    def _nothing(self, why: str, suspect: str = "") -> PerformanceVerdict:
        line = " ".join("".join(c if c.isprintable() else " " for c in why).split())[:REASON]
        return PerformanceVerdict(
            self.performance.points, True, 0.0, line, device=self.device, suspect=suspect[:REASON]
        )


def decide(performance: Performance, times: Times, device: str, effort: Effort) -> PerformanceVerdict:
    """Points from times; none for what is faster than can be, and no verdict from noise."""
    if times.widest > effort.noise:
        spread = f"medians are known to {times.widest:.0%} only, {effort.noise:.0%} is needed"
        return leave_unmeasured(performance, f"too noisy here: {spread}", device)
    ratio, least_s = times.ratio, least_call_s(performance, times, device)
    baseline = "the library's speed" if performance.against == "library" else "this device's limit"
    earned, suspect = performance.earned(ratio.low), ""
    if times.net.high < least_s:
        earned = 0.0
        took, least = (f"{seconds * 1e6:.3g} µs" for seconds in (times.net.high, least_s))
        suspect = f"faster than can be: {took} a call, and nothing honest takes under {least}"
    return PerformanceVerdict(
        performance.points, True, earned, suspect, *_finite(ratio), device=device, baseline=baseline, suspect=suspect
    )


def _finite(ratio: Interval) -> tuple[float, float, float]:
    """A ratio whose ends can stand in JSON: the submission's time less the protocol's own may be nothing or less."""
    low, median, high = (min(value, 1e6) for value in (ratio.low, ratio.median, ratio.high))
    return low, median, high


def least_call_s(performance: Performance, times: Times, device: str) -> float:
    """Seconds below which no honest call is: from the check, and from its work at the device's data sheet peaks.

    For a device that the table does not have, half the time that the same work took at the measured bound.
    """
    least_s, work = performance.least_s, performance.work
    if work is None:
        return least_s
    try:
        row = device_named(device)
    except InputError:
        measured = min(block.low for block in times.baseline) / 2 if performance.against == "bound" else 0.0
        return max(least_s, measured)
    compute_s = work.flops / row.peak(work.precision) if work.flops else 0.0
    return max(least_s, work.size_bytes / row.memory_bandwidth_bytes_per_s, compute_s)


@contextmanager
def _clean(order: Mapping[str, object], start_s: float, gpu: Gpu) -> Iterator[tuple[Party, str]]:
    """A process that runs the course's side only, and the name of its device ("" where it finds none)."""
    channel, inner = socket.socketpair()
    entry = f"import sys; sys.path[:0] = {IMPORT_PATH!r}; from mlsys_grader.speed.baseline import main; main()"
    with inner:
        process = subprocess.Popen(
            [sys.executable, "-s", "-P", "-B", "-c", entry],
            stdin=inner.fileno(),
            stdout=subprocess.DEVNULL,
            env=make_environment(tempfile.gettempdir()) | gpu.environment,
        )
    try:
        party = Party(channel)
        deadline = time.monotonic() + start_s
        try:
            reply = party.request("start", order, deadline=deadline)
        except (Broken, TooSlow) as error:
            raise MissingToolError("the baseline's process did not start", got=str(error)) from None
        yield party, str(reply.meta["device"])
    finally:
        channel.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _memory_back(null: Party) -> Iterator[None]:
    """Around a submission's life: `CourseError` unless the device memory that it took is free again soon after."""
    before = _free_bytes(null)
    yield
    deadline = time.monotonic() + MEMORY_WAIT_S
    while (now := _free_bytes(null)) < before - MEMORY_SLACK_BYTES:
        if time.monotonic() > deadline:
            raise CourseError(
                "device memory of a dead submission is not free again",
                got=f"{now:,} bytes free",
                expected=f"{before:,}",
            )
        time.sleep(0.2)


def _free_bytes(null: Party) -> int:
    return int(null.request("memory", deadline=time.monotonic() + MEMORY_WAIT_S).meta["free"])
