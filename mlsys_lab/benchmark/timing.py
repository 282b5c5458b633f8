"""Timing that can be trusted: warmed up, synchronised, repeated, and compared within one run.

Absolute times differ between machines and between minutes: say how fast something is by a ratio from `compare`, or
by a fraction of a bound that was measured in the same run.
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
Fresh = Callable[[], tuple[Any, ...]]

SHORTEST_SAMPLE_S = 1e-3
"""Least duration of a CPU sample, 10,000 times what reading the clock costs: quicker calls are repeated to fill it."""
FLUSH_FACTOR = 2
"""Size of the buffer that is overwritten before each CUDA sample, in L2 caches, so that inputs come from memory."""


@dataclass(frozen=True)
class Timing:
    """Seconds that a call took, one number for each sample."""

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
    """How many times as long one call took as another, one ratio for each round of samples."""

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
    """Timings of several calls whose samples were taken in turns: sample i of each comes from the same round."""

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
    fresh: Fresh | None = None,
) -> Timing:
    """Time one call and return its `Timing`; arguments and errors are those of `compare`."""
    comparison = compare({"call": call}, device=device, samples=samples, warmup=warmup, flush_l2=flush_l2, fresh=fresh)
    return comparison.timings["call"]


def compare(
    calls: Mapping[str, Call],
    *,
    device: str = "cpu",
    samples: int = 30,
    warmup: int = 3,
    flush_l2: bool = True,
    fresh: Fresh | None = None,
) -> Comparison:
    """Time several calls in turns, starting each round with the next one.

    Each is called `warmup` times first, which also compiles what is compiled on first use. On "cpu" a sample is a wall
    time, of several calls in a row when one is quick. On "cuda" a sample is the time between two events around ONE
    call on the current stream, after a synchronisation and, with `flush_l2`, after the L2 cache was overwritten.
    A call should write nothing that makes its next run cheaper. `fresh` gives the arguments of every single call, warm
    up included, anew: it is called outside the time that is taken, so that no call meets inputs that were seen before
    or changed by another. `InputError` for a bad argument, `MissingToolError` for "cuda" without a device.
    """
    if not calls or samples < 1 or warmup < 0:
        raise InputError("nothing to time", got=f"{len(calls)} calls, {samples} samples, {warmup} warm-up calls")
    if device not in ("cpu", "cuda"):
        raise InputError("cannot time on this device", got=repr(device), expected="'cpu' or 'cuda'")
    draw = fresh or _no_arguments
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
    """Wall-clock timer for the CPU: a sample is the mean of as many calls in a row as last `SHORTEST_SAMPLE_S`."""

    def __init__(self) -> None:
        self._repeats: dict[str, int] = {}

    def prepare(self, name: str, call: Call, fresh: Fresh) -> None:
        """Find how many calls in a row make a sample of at least `SHORTEST_SAMPLE_S`."""
        repeats, time_s = 1, self._time(call, fresh, 1)
        while time_s < SHORTEST_SAMPLE_S:
            repeats *= 2
            time_s = self._time(call, fresh, repeats)
        self._repeats[name] = repeats

    def sample(self, name: str, call: Call, fresh: Fresh) -> float:
        """Take one sample: seconds of one call, the mean over several; arguments are made before the clock starts."""
        repeats = self._repeats[name]
        return self._time(call, fresh, repeats) / repeats

    @staticmethod
    def _time(call: Call, fresh: Fresh, repeats: int) -> float:
        inputs = [fresh() for _ in range(repeats)]
        start = time.perf_counter()
        for arguments in inputs:
            call(*arguments)
        return time.perf_counter() - start


class _CudaClock:
    """CUDA timer: the device's own time between two events, one call a sample, the L2 cache flushed first if asked."""

    def __init__(self, flush_l2: bool) -> None:
        import torch

        if not torch.cuda.is_available():
            raise MissingToolError("no CUDA device to time on", help="time on 'cpu', or see `mlsys-lab doctor`")
        self._cuda: Any = torch.cuda
        size_bytes = FLUSH_FACTOR * torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self._flush = torch.empty(size_bytes if flush_l2 else 0, dtype=torch.uint8, device="cuda")

    def prepare(self, name: str, call: Call, fresh: Fresh) -> None:
        """Wait until the GPU has finished the warm-up calls; on CUDA a sample is always one call."""
        self._cuda.synchronize()

    def sample(self, name: str, call: Call, fresh: Fresh) -> float:
        """Take one sample: seconds on the device from before the call to the end of all that it launched."""
        arguments = fresh()
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
    """Keep Python's garbage collector from running in the body of a `with`, that is, within a sample."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
