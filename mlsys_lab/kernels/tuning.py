"""Autotuning: time a few launch configurations of a kernel once per problem and keep the fastest.

Why not `triton.autotune`: it decorates one kernel and chooses inside the launch. Here the configuration has to be known
before it. The tile sizes go into tensor descriptors that the host builds; one configuration covers the three kernels of
naive attention; a recorder and a test see the same constants as the kernel; and candidates that exceed the device's
shared memory are left out before anything is compiled. Where kernels are interpreted there is no GPU for
`triton.autotune` to benchmark on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.runtime import triton_interprets

Config = TypeVar("Config")

_fastest: dict[Hashable, Any] = {}  # kept as long as the process lives


def fastest(key: Hashable, configs: Sequence[Config], run: Callable[[Config], None]) -> Config:
    """Return the config with the lowest median time of `run` on the GPU, measured once for each `key` (the problem).

    Configs that the device has no resources for are skipped. Where kernels are interpreted, the first one is returned
    without a measurement. `run` must be repeatable. Raises InputError if no config is left.
    """
    if triton_interprets() and configs:
        return configs[0]
    if key not in _fastest:
        times_ms = [_time_ms(functools.partial(run, config)) for config in configs]
        best_ms = min(times_ms, default=math.inf)
        if best_ms == math.inf:
            raise InputError("no way to start this kernel fits the device", got=f"{len(configs)} ways")
        _fastest[key] = configs[times_ms.index(best_ms)]
    config: Config = _fastest[key]
    return config


def _time_ms(run: Callable[[], None]) -> float:
    from mlsys_lab.kernels.triton_language import triton

    try:
        return float(triton.testing.do_bench(run, warmup=10, rep=40, return_mode="median"))
    except (triton.runtime.errors.OutOfResources, triton.runtime.errors.PTXASError):
        return math.inf
