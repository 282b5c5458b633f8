"""The roofline model: the least time that a piece of work can take on a device (Williams, Waterman, Patterson, 2009).

The figure repeats this arithmetic in JavaScript, and a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mlsys_lab.hardware import DEVICES, Device


@dataclass(frozen=True)
class Bound:
    """What the roofline says about one piece of work on one device."""

    intensity: float  # FLOP/B of the work
    ridge: float  # FLOP/B at which the device's two limits meet
    time_s: float  # least time
    flops_per_s: float  # highest rate
    fraction: float  # of peak, in (0, 1]
    limit: str  # "memory" or "compute"


def matmul(m: int, n: int, k: int, element_bytes: float) -> tuple[float, float]:
    """FLOPs and least bytes of (m,k)·(k,n): 2mnk, and each of the three matrices moved once."""
    return 2.0 * m * n * k, (m * k + k * n + m * n) * element_bytes


def bound(flops: float, size_bytes: float, *, peak_flops_per_s: float, bandwidth_bytes_per_s: float) -> Bound:
    """The least time for `flops` operations over `size_bytes` bytes, and what sets it."""
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


def device_data(devices: Iterable[Device] = DEVICES) -> list[dict[str, Any]]:
    """What the figure needs of each device: its name, its memory bandwidth in B/s, its dense peaks in FLOP/s."""
    return [
        {"name": one.name, "bandwidth": one.memory_bandwidth_bytes_per_s, "peaks": dict(one.peaks)} for one in devices
    ]
