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
"""A CPU sample repeats a quick call until it lasts this long, 10,000 times what reading the clock costs."""
FLUSH_FACTOR = 2
"""On CUDA, a buffer of twice the L2 cache is overwritten before each sample, so that inputs come from memory."""


@dataclass(frozen=True)
class Timing:
    """Seconds a call took, sample by sample."""

    samples_s: tuple[float, ...]

    @property
    def p20_s(self) -> float:
        """A fifth of the samples were faster."""
        return float(np.percentile(self.samples_s, 20))

    @property
    def p50_s(self) -> float:
        """The median: what to quote."""
        return float(np.percentile(self.samples_s, 50))

    @property
    def p80_s(self) -> float:
        """A fifth of the samples were slower."""
        return float(np.percentile(self.samples_s, 80))

    def __str__(self) -> str:
        low, mid, high = (f"{seconds * 1e6:,.4g}" for seconds in (self.p20_s, self.p50_s, self.p80_s))
        return f"{mid} µs (p20 {low}, p80 {high}, {len(self.samples_s)} samples)"


@dataclass(frozen=True)
class Ratio:
    """How many times as long one call took as another, round by round."""

    samples: tuple[float, ...]

    @property
    def p20(self) -> float:
        """A fifth of the rounds had a lower ratio."""
        return float(np.percentile(self.samples, 20))

    @property
    def p50(self) -> float:
        """The median over rounds."""
        return float(np.percentile(self.samples, 50))

    @property
    def p80(self) -> float:
        """A fifth of the rounds had a higher ratio."""
        return float(np.percentile(self.samples, 80))


@dataclass(frozen=True)
class Comparison:
    """Timings of several calls whose samples were taken in turns: sample i of each comes from the same round."""

    timings: Mapping[str, Timing]

    def ratio(self, name: str, baseline: str) -> Ratio:
        """Time of `name` over time of `baseline`, paired by round, so that a slow minute strikes both."""
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
    """Time one call. See `compare` for what the arguments mean and for the errors."""
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
    draw = fresh or _nothing
    clock = _CudaClock(flush_l2) if device == "cuda" else _CpuClock()
    for call in calls.values():
        for _ in range(warmup):
            call(*draw())
    for name, call in calls.items():
        clock.prepare(name, call, draw)
    names = list(calls)
    taken: dict[str, list[float]] = {name: [] for name in names}
    with _no_gc():
        for turn in range(samples):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                taken[name].append(clock.sample(name, calls[name], draw))
    return Comparison({name: Timing(tuple(times)) for name, times in taken.items()})


def _nothing() -> tuple[Any, ...]:
    return ()


class _CpuClock:
    """Wall-clock time, of as many calls in a row as last `SHORTEST_SAMPLE_S`."""

    def __init__(self) -> None:
        self._repeats: dict[str, int] = {}

    def prepare(self, name: str, call: Call, fresh: Fresh) -> None:
        """Find how many calls in a row make a sample that is long enough."""
        repeats, time_s = 1, self._time(call, fresh, 1)
        while time_s < SHORTEST_SAMPLE_S:
            repeats *= 2
            time_s = self._time(call, fresh, repeats)
        self._repeats[name] = repeats

    def sample(self, name: str, call: Call, fresh: Fresh) -> float:
        """Seconds of one call, the mean of a sample; arguments are made before the clock starts."""
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
    """The device's own time between two events, one call a sample, its L2 cache emptied first where that is asked."""

    def __init__(self, flush_l2: bool) -> None:
        import torch

        if not torch.cuda.is_available():
            raise MissingToolError("no CUDA device to time on", help="time on 'cpu', or see `mlsys-lab doctor`")
        self._cuda: Any = torch.cuda
        size_bytes = FLUSH_FACTOR * torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self._flush = torch.empty(size_bytes if flush_l2 else 0, dtype=torch.uint8, device="cuda")

    def prepare(self, name: str, call: Call, fresh: Fresh) -> None:
        """Wait for what the warm-up has left running; one call is a sample, whatever it takes."""
        self._cuda.synchronize()

    def sample(self, name: str, call: Call, fresh: Fresh) -> float:
        """Seconds on the device from before the call to the end of all that it has launched."""
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
def _no_gc() -> Iterator[None]:
    """No garbage collection in the middle of a sample."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
