"""Autotuning: the fastest of a few ways to start a kernel, timed once for each kind of work.

What `triton.autotune` does, without its decorator: the choice is made outside of the kernel, so that grids, checks and
the interpreter see the same constants that the kernel gets.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.runtime import triton_interprets
from mlsys_lab.kernels.triton_language import triton

Choice = TypeVar("Choice")

_fastest: dict[Hashable, Any] = {}  # what was found, for as long as the process lives


def fastest(key: Hashable, choices: Sequence[Choice], run: Callable[[Choice], None]) -> Choice:
    """The choice whose `run` takes least time (median) on the GPU, measured once for each `key`, which names the work.

    Choices that the device has no room for are left out. Where kernels are interpreted there is nothing to measure: the
    first. `run` must be repeatable. Raises InputError where no choice is left.
    """
    if triton_interprets() and choices:
        return choices[0]
    if key not in _fastest:
        times_ms = [_time_ms(functools.partial(run, choice)) for choice in choices]
        best_ms = min(times_ms, default=math.inf)
        if best_ms == math.inf:
            raise InputError("no way to start this kernel fits the device", got=f"{len(choices)} ways")
        _fastest[key] = choices[times_ms.index(best_ms)]
    found: Choice = _fastest[key]
    return found


def _time_ms(run: Callable[[], None]) -> float:
    try:
        return float(triton.testing.do_bench(run, warmup=10, rep=40, return_mode="median"))
    except (triton.runtime.errors.OutOfResources, triton.runtime.errors.PTXASError):
        return math.inf
