"""Measure performance points: the device, the baseline processes, and the verdict.

Baseline processes run the course's own code only, outside the sandbox.
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
from mlsys_grader.judging.performance import MAX_REASON, NO_CUDA, PerformanceVerdict, has_device, leave_unmeasured
from mlsys_grader.paths import IMPORT_PATH
from mlsys_grader.sandbox.contents import make_environment
from mlsys_grader.sandbox.gpu import Gpu
from mlsys_grader.speed.rounds import (
    CheatingError,
    Comparison,
    MeasurementConfig,
    NoAnswerError,
    Opener,
    TimedProcess,
    TooSlowError,
)
from mlsys_grader.speed.times import Interval, Times
from mlsys_lab.errors import CourseError, InputError, MissingToolError
from mlsys_lab.hardware import device as device_named

MEMORY_SLACK_BYTES = 512 << 20
"""Device memory that may be missing after a submission: the baseline processes' own caches grow."""
MEMORY_WAIT_S = 20.0


class Bench:
    """Measure the performance points of one check for one submission after another. Use it as a context manager.

    The caller holds the device (`speed.devices`). `checks` is the module of the lab's checks, found with `path`
    prepended; `gpu` the GPU to use, the machine's first if None. Raises `MissingToolError` without the device,
    `CourseError` if the baseline cannot start.
    """

    def __init__(
        self,
        performance: Performance,
        checks: str,
        check: str,
        path: list[str],
        config: MeasurementConfig,
        gpu: Gpu | None = None,
    ) -> None:
        self.performance, self.config, self._gpu = performance, config, gpu or Gpu()
        self.device = ""
        self._order = {"path": path, "checks": checks, "check": check, "device": self.torch_device}
        self._first: Interval | None = None
        self._calls = self._size_bytes = 0
        self._stack = ExitStack()
        self._processes: list[TimedProcess] = []

    @property
    def torch_device(self) -> str:
        """The torch device used on both sides of a measurement."""
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
                process, self.device = stack.enter_context(_open_clean_process(order, self.config.start_s, self._gpu))
                if not self.device:
                    raise MissingToolError(NO_CUDA)
                self._processes.append(process)
            self._stack = stack.pop_all()

    def _stop(self) -> None:
        self._processes.clear()
        self._stack.close()

    def _roles(self) -> list[str]:
        work = self.performance.work
        if self.performance.against == "library" or work is None:
            return ["library", "empty"]
        return ["library", "empty", *(["copy"] if work.size_bytes else []), *(["product"] if work.flops else [])]

    def measure(self, submission: Opener) -> PerformanceVerdict:
        """Measure one submission. Never raises for what the submission does.

        If the baseline fails, which a submission that fills or crashes the device can cause, nothing is measured and
        the next submission gets fresh processes.
        """
        start = time.monotonic()
        verdict = self._compare(submission)
        return replace(verdict, time_s=time.monotonic() - start)

    def _compare(self, submission: Opener) -> PerformanceVerdict:
        if not self._processes:
            self._start()
        library, empty, *bounds = self._processes
        comparison = Comparison(
            self.performance, library, empty, submission, bounds, self.config, lambda: _require_memory_freed(empty)
        )
        comparison.calls, comparison.size_bytes = self._calls, self._size_bytes
        if self._first is not None:  # measured before any submission could slow the device
            comparison.times.baseline.append(self._first)
        try:
            times = comparison.run()
        except CheatingError as error:
            return self._zero_points(str(error), suspect=str(error))
        except NoAnswerError as error:
            return self._zero_points(f"the timed code gave no answer: {error}")
        except TooSlowError:
            return self._zero_points(f"a call takes over {self.config.max_slowdown:g} times as long as it should")
        except CourseError as error:
            self._stop()
            return leave_unmeasured(self.performance, f"the measurement itself failed: {error}", self.device)
        finally:
            self._first = self._first or next(iter(comparison.times.baseline), None)
            if self._first is not None:
                self._calls, self._size_bytes = comparison.calls, comparison.size_bytes
        return score(self.performance, times, self.device, self.config)

    def _zero_points(self, why: str, suspect: str = "") -> PerformanceVerdict:
        line = " ".join("".join(c if c.isprintable() else " " for c in why).split())[:MAX_REASON]
        return PerformanceVerdict(
            self.performance.points, True, 0.0, line, device=self.device, suspect=suspect[:MAX_REASON]
        )


def score(performance: Performance, times: Times, device: str, config: MeasurementConfig) -> PerformanceVerdict:
    """Points from times: none for an impossible speed, and no verdict from noise."""
    if times.widest > config.noise:
        spread = f"medians are known to {times.widest:.0%} only, {config.noise:.0%} is needed"
        return leave_unmeasured(performance, f"too noisy here: {spread}", device)
    ratio, min_s = times.ratio, min_call_s(performance, times, device)
    baseline = "the library's speed" if performance.against == "library" else "this device's limit"
    earned, suspect = performance.earned(ratio.low), ""
    if times.net.high < min_s:
        earned = 0.0
        took, least = (f"{seconds * 1e6:.3g} µs" for seconds in (times.net.high, min_s))
        suspect = f"faster than can be: {took} a call, and nothing honest takes under {least}"
    return PerformanceVerdict(
        performance.points,
        True,
        earned,
        suspect,
        *_clip_ratio(ratio),
        device=device,
        baseline=baseline,
        suspect=suspect,
    )


def _clip_ratio(ratio: Interval) -> tuple[float, float, float]:
    """Limit the ratio to finite numbers for JSON: the net time of a submission may be zero or negative."""
    low, median, high = (min(value, 1e6) for value in (ratio.low, ratio.median, ratio.high))
    return low, median, high


def min_call_s(performance: Performance, times: Times, device: str) -> float:
    """Lower bound on an honest call: the check's own, or its work at the device's data sheet peaks.

    For a device that is not in the table, half the time of the same work in the measured limit.
    """
    min_s, work = performance.min_s, performance.work
    if work is None:
        return min_s
    try:
        row = device_named(device)
    except InputError:
        measured = min(block.low for block in times.baseline) / 2 if performance.against == "bound" else 0.0
        return max(min_s, measured)
    compute_s = work.flops / row.peak(work.precision) if work.flops else 0.0
    return max(min_s, work.size_bytes / row.memory_bandwidth_bytes_per_s, compute_s)


@contextmanager
def _open_clean_process(order: Mapping[str, object], start_s: float, gpu: Gpu) -> Iterator[tuple[TimedProcess, str]]:
    """A process that runs the course's side only, and the name of its device ("" if it finds none)."""
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
        timed = TimedProcess(channel)
        deadline = time.monotonic() + start_s
        try:
            reply = timed.request("start", order, deadline=deadline)
        except (NoAnswerError, TooSlowError) as error:
            raise MissingToolError("the baseline's process did not start", got=str(error)) from None
        yield timed, str(reply.meta["device"])
    finally:
        channel.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _require_memory_freed(empty: TimedProcess) -> Iterator[None]:
    """Raise `CourseError` after a submission's life unless the device memory that it took is soon free again."""
    before = _free_bytes(empty)
    yield
    deadline = time.monotonic() + MEMORY_WAIT_S
    while (now := _free_bytes(empty)) < before - MEMORY_SLACK_BYTES:
        if time.monotonic() > deadline:
            raise CourseError(
                "device memory of a dead submission is not free again",
                got=f"{now:,} bytes free",
                expected=f"{before:,}",
            )
        time.sleep(0.2)


def _free_bytes(empty: TimedProcess) -> int:
    return int(empty.request("memory", deadline=time.monotonic() + MEMORY_WAIT_S).meta["free"])
