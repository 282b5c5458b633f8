"""Data of the roofline figure. It repeats `mlsys_lab.flops.roofline` in JavaScript, and a test holds the two equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlsys_lab.hardware import DEVICES, Device


def device_data(devices: Iterable[Device] = DEVICES) -> list[dict[str, Any]]:
    """What the figure needs of each device: its name, its memory bandwidth in B/s, its dense peaks in FLOP/s."""
    return [
        {"name": one.name, "bandwidth": one.memory_bandwidth_bytes_per_s, "peaks": dict(one.peaks)} for one in devices
    ]
