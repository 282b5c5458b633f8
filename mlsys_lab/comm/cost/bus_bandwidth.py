"""What nccl-tests prints: algorithm bandwidth, and bus bandwidth, which can be compared with the link's own.

Algorithm bandwidth is the array's bytes over the time. Bus bandwidth multiplies it by what the collective must move
over each rank's link for every byte of the array, so that a perfect run shows the link's bandwidth whatever the number
of ranks. nccl-tests, doc/PERFORMANCE.md: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

from collections.abc import Callable

from mlsys_lab.errors import InputError, did_you_mean

FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda p: 2 * (p - 1) / p,
    "reduce_scatter": lambda p: (p - 1) / p,
    "all_gather": lambda p: (p - 1) / p,
    "all_to_all": lambda p: (p - 1) / p,
    "broadcast": lambda p: 1.0,
    "reduce": lambda p: 1.0,
}


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth. The array is the whole one: what an all-gather ends with.

    >>> [bus_factor(name, 8) for name in ("all_reduce", "all_gather", "broadcast")]
    [1.75, 0.875, 1.0]
    """
    if collective not in FACTORS:
        known = ", ".join(FACTORS)
        raise InputError("no such collective", got=collective, expected=known, help=did_you_mean(collective, FACTORS))
    if ranks < 1:
        raise InputError("a collective has at least one rank", got=ranks)
    return FACTORS[collective](ranks)


def bus_bytes_per_s(collective: str, ranks: int, size_bytes: float, time_s: float) -> float:
    """Bus bandwidth of a collective over an array of `size_bytes` that took `time_s`."""
    if not time_s > 0:
        raise InputError("a bandwidth needs a positive time", got=f"{time_s} s")
    return bus_factor(collective, ranks) * size_bytes / time_s
