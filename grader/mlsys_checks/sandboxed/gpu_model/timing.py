"""Calls of tasks 2 and 3: a timing loop on a machine that is made up elsewhere, a fit of times, and what binds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays, Query
from mlsys_checks.sandboxed.values import number, parts, word, write_number
from mlsys_lab.errors import InputError

FIT = "fit_overhead_and_bandwidth(sizes_bytes, times_s)"
OVERHEAD, BANDWIDTH = f"overhead_s from {FIT}", f"bytes_per_s from {FIT}"
BOUNDS = ("compute", "memory", "overhead", "unexplained")


class QueriedMachine:
    """A clock, inputs to make and a call to time, each of which asks a machine that lives elsewhere."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self.readings = 0

    def clock(self) -> float:
        """The time now, in seconds."""
        self.readings += 1
        return self._query("clock", 0)

    def make(self) -> int:
        """Make an input that nobody has seen."""
        return int(self._query("make", 0))

    def call(self, value: Any) -> None:
        """What is to be timed; for one input only its first call takes the whole time."""
        if type(value) is not int:
            raise InputError("`call` was given something else than an input", got=repr(value)[:80], expected="make()")
        self._query("call", value)


def median(artifact: Any, query: Query, arrays: Arrays) -> Arrays:
    """What the learner's loop says of a machine whose times are known elsewhere."""
    samples, warmup = int(arrays["samples"]), int(arrays["warmup"])
    machine = QueriedMachine(query)
    got = artifact.median_time_s(machine.make, machine.call, machine.clock, samples=samples, warmup=warmup)
    if not machine.readings:
        raise InputError("`clock` is never called", got="no reading, or those of another clock", expected="clock()")
    name = median_call(samples, warmup)
    return {name: number(name, got)}


def median_call(samples: int, warmup: int) -> str:
    """A call of `median_time_s` as code."""
    return f"median_time_s(make, call, clock, samples={samples}, warmup={warmup})"


def fit(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `fit_overhead_and_bandwidth`: overhead and bandwidth from times."""
    given = {name: arrays[name].copy() for name in ("sizes_bytes", "times_s")}
    got = artifact.fit_overhead_and_bandwidth(*given.values())
    if changed := [name for name, array in given.items() if not np.array_equal(array, arrays[name])]:
        raise InputError("an array that was passed in is changed", got=changed[0], expected="as it was")
    overhead_s, bytes_per_s = parts(FIT, got, "overhead_s", "bytes_per_s")
    return {OVERHEAD: number(OVERHEAD, overhead_s), BANDWIDTH: number(BANDWIDTH, bytes_per_s)}


def machines(arrays: Arrays) -> Iterator[tuple[list[float], str]]:
    """Each machine of a case: its three numbers, and the variable that it is in a call as code."""
    for i, numbers in enumerate(arrays["machines"].tolist()):
        yield numbers, f"machine_{i}" if i else "machine"


def regime(artifact: Any, arrays: Arrays) -> Arrays:
    """On each machine the least time of every piece of work, what binds it, and the share that this explains."""
    found: dict[str, np.ndarray] = {}
    for numbers, called in machines(arrays):
        machine = artifact.Machine(*numbers)
        for time_s, flops, size_bytes in arrays["works"].tolist():
            least = predict_call(flops, size_bytes, called)
            found[least] = number(least, artifact.predict_s(flops, size_bytes, machine))
            name = regime_call(time_s, flops, size_bytes, called)
            binds, share = parts(name, artifact.regime(time_s, flops, size_bytes, machine), "binds", "share")
            found[f"what binds, from {name}"] = word(name, binds, BOUNDS)
            found[f"share from {name}"] = number(f"share from {name}", share)
    return found


def predict_call(flops: float, size_bytes: float, machine: str) -> str:
    """A call of `predict_s` as code; `machine` is a variable."""
    return f"predict_s({write_number(flops)}, {write_number(size_bytes)}, {machine})"


def regime_call(time_s: float, flops: float, size_bytes: float, machine: str) -> str:
    """A call of `regime` as code; `machine` is a variable."""
    return f"regime({write_number(time_s)}, {write_number(flops)}, {write_number(size_bytes)}, {machine})"
