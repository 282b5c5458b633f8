"""The roofline model: the least time that a piece of work takes on a device (Williams, Waterman, Patterson, 2009)."""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_lab.hardware import Device
from mlsys_lab.validation import require_at_least_one, require_non_negative, require_positive


@dataclass(frozen=True)
class Bound:
    """What the roofline says about one piece of work on one device."""

    intensity: float  # FLOP/B of the work
    ridge: float  # FLOP/B at which the device's two limits meet
    time_s: float  # least time
    flops_per_s: float  # highest rate
    fraction: float  # of peak, in [0, 1]
    limit: str  # "memory" or "compute"


def matmul_work(m: int, n: int, k: int, element_bytes: float) -> tuple[float, float]:
    """FLOPs and least bytes of (m,k)·(k,n): 2mnk, and each of the three matrices moved once."""
    return 2.0 * m * n * k, (m * k + k * n + m * n) * element_bytes


def bound(flops: float, size_bytes: float, *, peak_flops_per_s: float, bandwidth_bytes_per_s: float) -> Bound:
    """The least time for `flops` operations over `size_bytes` bytes, and what sets it.

    Raises InputError for negative FLOPs, and unless bytes and rates are positive.
    """
    require_non_negative(flops=flops)
    require_positive(
        size_bytes=size_bytes, peak_flops_per_s=peak_flops_per_s, bandwidth_bytes_per_s=bandwidth_bytes_per_s
    )
    compute_s, memory_s = flops / peak_flops_per_s, size_bytes / bandwidth_bytes_per_s
    time_s = max(compute_s, memory_s)
    return Bound(
        intensity=flops / size_bytes,
        ridge=peak_flops_per_s / bandwidth_bytes_per_s,
        time_s=time_s,
        flops_per_s=flops / time_s,
        fraction=flops / time_s / peak_flops_per_s,
        limit="compute" if compute_s >= memory_s else "memory",
    )


def bound_on(device: Device, precision: str, flops: float, size_bytes: float) -> Bound:
    """Least time of work on a row of the device table, and what sets it; InputError if it has no such precision."""
    peak, bandwidth = device.peak(precision), device.memory_bandwidth_bytes_per_s
    return bound(flops, size_bytes, peak_flops_per_s=peak, bandwidth_bytes_per_s=bandwidth)


def critical_batch(ridge: float, weight_bytes: float = 2) -> float:
    """Rows of x in x·W from which the multiplication is limited by compute, when W is much larger than x.

    2·B·D·F operations over D·F·`weight_bytes` bytes of weights meet the ridge (FLOP/B) at this B.

    >>> critical_batch(240), critical_batch(240, weight_bytes=1)
    (240.0, 120.0)
    """
    require_positive(ridge=ridge, weight_bytes=weight_bytes)
    return ridge * weight_bytes / 2


def attention_intensity(queries: int, keys: int, group: int = 1, element_bytes: float = 2) -> float:
    """FLOP/B of attention whose scores never leave the chip, with `group` query heads to a key/value head.

    A group of heads reads one key and one value for each position of the cache and, for each query, reads the queries
    and writes the outputs: 4·group·queries·keys operations over 2·(group·queries + keys) elements, whatever the head's
    width. Everything is counted as attended (no mask). Decoding is `queries` = 1: the intensity stays below `group`,
    however long the cache.

    >>> round(attention_intensity(1, 8192, group=8), 2)
    7.99
    """
    require_at_least_one(queries=queries, keys=keys, group=group)
    require_positive(element_bytes=element_bytes)
    return 4.0 * group * queries * keys / (2 * (group * queries + keys) * element_bytes)
