"""Algorithm bandwidth and bus bandwidth (algbw, busbw), as nccl-tests prints them.

Algorithm bandwidth is the array's bytes divided by the time. Bus bandwidth multiplies it by the bytes that must cross
each rank's link for every byte of the array, so that an ideal run shows the link's bandwidth for any number of ranks.
nccl-tests, doc/PERFORMANCE.md: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
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
    """Ratio of bus to algorithm bandwidth. The array is the full one: an all-gather's result.

    >>> [bus_factor(name, 8) for name in ("all_reduce", "all_gather", "broadcast")]
    [1.75, 0.875, 1.0]
    """
    if collective not in FACTORS:
        known = ", ".join(FACTORS)
        raise InputError("unknown collective", got=collective, expected=known, help=did_you_mean(collective, FACTORS))
    if ranks < 1:
        raise InputError("a collective has at least one rank", got=ranks)
    return FACTORS[collective](ranks)


def bus_bytes_per_s(collective: str, ranks: int, size_bytes: float, time_s: float) -> float:
    """Bus bandwidth of a collective over an array of `size_bytes` that took `time_s`."""
    if not time_s > 0:
        raise InputError("a bandwidth needs a positive time", got=f"{time_s} s")
    return bus_factor(collective, ranks) * size_bytes / time_s
