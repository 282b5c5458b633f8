"""Peak rates of devices, as in `device("H100").ridge_point("bf16")`, and measured rates of this machine's CPU."""

from __future__ import annotations

import re

from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.hardware.cpu import measure_copy_bandwidth, measure_cpu
from mlsys_lab.hardware.device import PRECISIONS, Device, Link
from mlsys_lab.hardware.devices import DEVICES

__all__ = ["DEVICES", "PRECISIONS", "Device", "Link", "device", "measure_copy_bandwidth", "measure_cpu"]

NON_SXM = {"pcie", "nvl"}
"""Words in a driver's device name that mark a slower card with the same chip as the table's SXM module."""


def device(name: str) -> Device:
    """Look up a device by its name in the table or the driver's; InputError with a suggestion for an unknown one.

    >>> device("NVIDIA A100-SXM4-80GB").name
    'A100 80GB'
    >>> round(device("h100").ridge_point("bf16"))
    295
    """
    words = _words(name)
    fitting = [entry for entry in DEVICES if _words(entry.name) <= words]
    if fitting and not words & NON_SXM:
        return max(fitting, key=lambda entry: len(_words(entry.name)))
    names = [entry.name for entry in DEVICES]
    near = [known for known in names if words and words <= _words(known)]
    help_ = f"did you mean {' or '.join(map(repr, near))}?" if near else did_you_mean(name.upper(), names)
    if fitting:
        help_ = f"the table has {fitting[0].name} as its SXM module only, which is faster"
    raise InputError("no such device in the table", got=repr(name), expected=f"one of {', '.join(names)}", help=help_)


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", name.lower()))
