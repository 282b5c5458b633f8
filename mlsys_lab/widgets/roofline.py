"""Interactive roofline figure, which repeats `mlsys_lab.flops.roofline` in JavaScript; a test holds the two equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlsys_lab.hardware import DEVICES, Device


def device_data(devices: Iterable[Device] = DEVICES) -> list[dict[str, Any]]:
    """Data of each device for the roofline figure: name, bandwidth in B/s, dense peaks in FLOP/s by precision.

    Without fp64, whose peak is that of tensor cores on some GPUs and that of the lanes on others.
    """
    return [
        {
            "name": one.name,
            "bandwidth": one.memory_bandwidth_bytes_per_s,
            "peaks": {precision: peak for precision, peak in one.peaks.items() if precision != "fp64"},
        }
        for one in devices
    ]
