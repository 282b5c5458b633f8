"""Interactive roofline figure, which repeats `mlsys_lab.flops.roofline` in JavaScript; a test holds the two equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlsys_lab.hardware import DEVICES, Device


def device_data(devices: Iterable[Device] = DEVICES) -> list[dict[str, Any]]:
    """Data of each device for the roofline figure: name, bandwidth in B/s, dense peaks in FLOP/s by precision."""
    return [
        {"name": one.name, "bandwidth": one.memory_bandwidth_bytes_per_s, "peaks": dict(one.peaks)} for one in devices
    ]
