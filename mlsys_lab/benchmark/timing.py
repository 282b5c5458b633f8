"""Reliable timing: warmed up, synchronised, repeated, and compared within one run.

Absolute times differ between machines and from minute to minute: report a ratio from `compare`, or a fraction of a
bound that was measured in the same run.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlsys_lab.errors import InputError, MissingToolError

Call = Callable[..., object]
MakeArguments = Callable[[], tuple[Any, ...]]

MIN_SAMPLE_S = 1e-3
"""Minimum duration of a CPU sample, 10,000 times the cost of reading the clock: faster calls are repeated."""
FLUSH_FACTOR = 2
"""Size, in L2 caches, of the buffer overwritten before a CUDA sample, so that inputs come from memory."""


@dataclass(frozen=True)
class Timing:
    """Seconds that a call took, one per sample."""

    samples_s: tuple[float, ...]

    @property
    def p20_s(self) -> float:
        """20th percentile in seconds: a fifth of the samples were faster."""
        return float(np.percentile(self.samples_s, 20))

    @property
    def p50_s(self) -> float:
        """Median in seconds: the figure to quote."""
        return float(np.percentile(self.samples_s, 50))

    @property
    def p80_s(self) -> float:
        """80th percentile in seconds: a fifth of the samples were slower."""
        return float(np.percentile(self.samples_s, 80))

    def __str__(self) -> str:
        low, mid, high = (f"{seconds * 1e6:,.4g}" for seconds in (self.p20_s, self.p50_s, self.p80_s))
        return f"{mid} µs (p20 {low}, p80 {high}, {len(self.samples_s)} samples)"


@dataclass(frozen=True)
class Ratio:
    """Time of one call relative to another, one ratio per round of samples."""

    samples: tuple[float, ...]

    @property
    def p20(self) -> float:
        """20th percentile: a fifth of the rounds had a lower ratio."""
        return float(np.percentile(self.samples, 20))

    @property
    def p50(self) -> float:
        """Median over rounds: the figure to quote."""
        return float(np.percentile(self.samples, 50))

    @property
    def p80(self) -> float:
        """80th percentile: a fifth of the rounds had a higher ratio."""
        return float(np.percentile(self.samples, 80))


@dataclass(frozen=True)
class Comparison:
    """Timings of several calls with interleaved samples: sample i of each comes from the same round."""

    timings: Mapping[str, Timing]

    def ratio(self, name: str, baseline: str) -> Ratio:
        """Time of call `name` over time of call `baseline`, paired by round, so that a slow minute affects both."""
        pairs = zip(self.timings[name].samples_s, self.timings[baseline].samples_s, strict=True)
        return Ratio(tuple(mine / theirs for mine, theirs in pairs))


def measure(
    call: Call,
    *,
    device: str = "cpu",
    samples: int = 30,
    warmup: int = 3,
    flush_l2: bool = True,
    make_args: MakeArguments | None = None,
) -> Timing:
    """Time one call and return its `Timing`; arguments and errors are those of `compare`."""
    options: dict[str, Any] = {"samples": samples, "warmup": warmup, "flush_l2": flush_l2, "make_args": make_args}
    return compare({"call": call}, device=device, **options).timings["call"]


def compare(
    calls: Mapping[str, Call],
    *,
    device: str = "cpu",
    samples: int = 30,
    warmup: int = 3,
    flush_l2: bool = True,
    make_args: MakeArguments | None = None,
) -> Comparison:
    """Time several calls with interleaved samples, starting each round with the next call.

    Each is called `warmup` times first, which also triggers just-in-time compilation. On "cpu" a sample is wall time,
    averaged over several calls in a row if one is fast. On "cuda" a sample is the time between two events around ONE
    call on the current stream, after a synchronisation and, with `flush_l2`, after the L2 cache was overwritten.
    A call should write nothing that makes its next run cheaper. `make_args`, if given, makes new arguments for every
    call, warm-up included, outside the measured time, so that no call gets inputs seen before or changed by another.
    Raises InputError for a bad argument and MissingToolError for "cuda" without a device.
    """
    if not calls or samples < 1 or warmup < 0:
        raise InputError("nothing to time", got=f"{len(calls)} calls, {samples} samples, {warmup} warm-up calls")
    if device not in ("cpu", "cuda"):
        raise InputError("cannot time on this device", got=repr(device), expected="'cpu' or 'cuda'")
    draw = make_args or _no_arguments
    clock = _CudaClock(flush_l2) if device == "cuda" else _CpuClock()
    for call in calls.values():
        for _ in range(warmup):
            call(*draw())
    for name, call in calls.items():
        clock.prepare(name, call, draw)
    names = list(calls)
    taken: dict[str, list[float]] = {name: [] for name in names}
    with _pause_gc():
        for turn in range(samples):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                taken[name].append(clock.sample(name, calls[name], draw))
    return Comparison({name: Timing(tuple(times)) for name, times in taken.items()})


def _no_arguments() -> tuple[Any, ...]:
    return ()


class _CpuClock:
    """Wall-clock timer for the CPU: a sample is the mean over enough calls in a row to last `MIN_SAMPLE_S`."""

    def __init__(self) -> None:
        self._repeats: dict[str, int] = {}

    def prepare(self, name: str, call: Call, make_args: MakeArguments) -> None:
        """Find how many calls in a row take at least `MIN_SAMPLE_S`."""
        repeats, time_s = 1, self._time(call, make_args, 1)
        while time_s < MIN_SAMPLE_S:
            repeats *= 2
            time_s = self._time(call, make_args, repeats)
        self._repeats[name] = repeats

    def sample(self, name: str, call: Call, make_args: MakeArguments) -> float:
        """Take one sample: seconds per call; arguments are made before the clock starts."""
        repeats = self._repeats[name]
        return self._time(call, make_args, repeats) / repeats

    @staticmethod
    def _time(call: Call, make_args: MakeArguments, repeats: int) -> float:
        inputs = [make_args() for _ in range(repeats)]
        start = time.perf_counter()
        for arguments in inputs:
            call(*arguments)
        return time.perf_counter() - start


class _CudaClock:
    """CUDA timer: device time between two events, one call per sample, optionally after flushing the L2 cache."""

    def __init__(self, flush_l2: bool) -> None:
        import torch

        if not torch.cuda.is_available():
            raise MissingToolError("no CUDA device to time on", help="time on 'cpu', or see `mlsys-lab doctor`")
        self._cuda: Any = torch.cuda
        size_bytes = FLUSH_FACTOR * torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self._flush = torch.empty(size_bytes if flush_l2 else 0, dtype=torch.uint8, device="cuda")

    def prepare(self, name: str, call: Call, make_args: MakeArguments) -> None:
        """Wait for the warm-up calls; on CUDA a sample is always one call."""
        self._cuda.synchronize()

    def sample(self, name: str, call: Call, make_args: MakeArguments) -> float:
        """Take one sample: seconds on the device from before the call until all its kernels have finished."""
        arguments = make_args()
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        self._cuda.synchronize()
        start.record()
        call(*arguments)
        end.record()
        self._cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e-3


@contextmanager
def _pause_gc() -> Iterator[None]:
    """Disable Python's garbage collector in the body of a `with`, so that it does not run within a sample."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
