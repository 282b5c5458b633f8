"""The one table of devices that the course computes with, read from devices.toml.

The table is in the units that vendors print, which its keys name (`memory_gib`, `clock_mhz`); a `Device` is in bytes,
hertz and operations per second.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from mlsys_lab.hardware.device import Device, Link

TABLE = files(__package__) / "devices.toml"
UNITS: Mapping[str, tuple[str, float]] = {
    "kib": ("bytes", 2**10),
    "mib": ("bytes", 2**20),
    "gib": ("bytes", 2**30),
    "gb": ("bytes", 1e9),
    "mhz": ("hz", 1e6),
}
"""Units in the table's keys: the unit of the `Device`'s field, and how many of those one is."""


def read_device(row: Mapping[str, Any]) -> Device:
    """Read a row of devices.toml. TypeError for a key that is unknown or missing, InputError for a wrong amount."""
    fields = dict(_convert(key, value) for key, value in row.items() if key not in ("peaks_tflops", "links"))
    return Device(
        peaks={precision: tflops * 1e12 for precision, tflops in row["peaks_tflops"].items()},
        links=tuple(Link(link["kind"], link["count"], link["gb_per_s"] * 1e9) for link in row["links"]),
        **{"checked": None} | fields,
    )


def _convert(key: str, value: Any) -> tuple[str, Any]:
    """The name and value of a `Device`'s field: `l2_mib` 50 is `l2_bytes` 52,428,800."""
    words = key.split("_")
    for index, word in enumerate(words):
        if word in UNITS:
            words[index], scale = UNITS[word]
            return "_".join(words), value * scale
    return key, tuple(value) if isinstance(value, list) else value


DEVICES = tuple(map(read_device, tomllib.loads(TABLE.read_text(encoding="utf-8"))["devices"]))
