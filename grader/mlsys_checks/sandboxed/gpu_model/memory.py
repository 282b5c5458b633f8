"""Calls of tasks 4 and 5: sectors and passes of a warp's request, blocks on a multiprocessor, bytes in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import number, whole, word
from mlsys_lab.errors import InputError

LIMITS = ("blocks", "warps", "registers", "shared memory")


def sectors_call(row: int, size_bytes: int) -> str:
    """A call of `sectors_touched` as code; `requests` are the addresses."""
    return f"sectors_touched(requests[{row}], {size_bytes})"


def passes_call(row: int) -> str:
    """A call of `bank_passes` as code."""
    return f"bank_passes(requests[{row}])"


def lanes(row: np.ndarray) -> list[int]:
    """The addresses of the lanes that take part; the others are -1."""
    return [address for address in row.tolist() if address >= 0]


def sectors(artifact: Any, arrays: Arrays) -> Arrays:
    """Sectors of each request, of the bytes a lane that go with it."""
    found = {}
    for i, (row, size_bytes) in enumerate(zip(arrays["requests"], arrays["size_bytes"].tolist(), strict=True)):
        name, addresses = sectors_call(i, size_bytes), lanes(row)
        found[name] = whole(name, artifact.sectors_touched(addresses, size_bytes))
        _refuse_changed(name, addresses, row)
    return found


def passes(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `bank_passes` for each request: its passes."""
    found = {}
    for i, row in enumerate(arrays["requests"]):
        name, addresses = passes_call(i), lanes(row)
        found[name] = whole(name, artifact.bank_passes(addresses))
        _refuse_changed(name, addresses, row)
    return found


def _refuse_changed(name: str, addresses: list[int], row: np.ndarray) -> None:
    """Raise `InputError` where a call has changed the list that it was given."""
    if addresses != lanes(row):
        raise InputError(f"the list that was passed in is changed by {name}", expected="as it was, in its order")


def held_call(kernel: Sequence[int]) -> str:
    """A call of `held` as code."""
    return f"held(unit, {', '.join(map(str, kernel))})"


def held(artifact: Any, arrays: Arrays) -> Arrays:
    """Blocks, warps and limit of every kernel: threads, registers a thread, bytes of shared memory."""
    unit = artifact.Unit(*arrays["unit"].tolist())
    found: dict[str, np.ndarray] = {}
    for kernel in arrays["kernels"].tolist():
        name = held_call(kernel)
        got = artifact.held(unit, *kernel)
        if not isinstance(got, artifact.Held):
            raise InputError(f"{name} gives no Held", got=repr(got)[:80], expected="Held(blocks, warps, limit)")
        found[f"blocks of {name}"] = whole(f"blocks of {name}", got.blocks)
        found[f"warps of {name}"] = whole(f"warps of {name}", got.warps)
        found[f"limit of {name}"] = word(f"limit of {name}", got.limit, LIMITS)
    return found


def in_flight(artifact: Any, arrays: Arrays) -> Arrays:
    """Bytes in flight, and the warps of each of so many multiprocessors that it takes."""
    rates = float(arrays["bytes_per_s"]), float(arrays["latency_s"])
    found = {"bytes_in_flight": number("bytes_in_flight", artifact.bytes_in_flight(*rates))}
    for units, lane_bytes, loads in arrays["waiting"].tolist():
        name = needed_call(units, lane_bytes, loads)
        found[name] = whole(name, artifact.warps_needed(*rates, units, lane_bytes, loads=loads))
    return found


def needed_call(units: int, lane_bytes: int, loads: int) -> str:
    """A call of `warps_needed` as code."""
    return f"warps_needed(bytes_per_s, latency_s, {units}, {lane_bytes}, loads={loads})"
