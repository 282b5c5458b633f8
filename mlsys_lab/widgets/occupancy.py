"""Interactive occupancy calculator: NVIDIA's GPUs, and the size of one kernel's blocks.

The figure reimplements `mlsys_lab.kernels.trace.occupancy` in JavaScript; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab import hardware
from mlsys_lab.hardware import DEVICES, Device
from mlsys_lab.kernels.trace.occupancy import occupancy
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

_TABLE_THREADS = (32, 64, 128, 256, 512, 768, 1024)


def multiprocessor_data(devices: Iterable[Device] = DEVICES) -> list[dict[str, Any]]:
    """Limits of a multiprocessor of each device; sizes in bytes."""
    return [
        {
            "name": one.name,
            "compute_capability": one.compute_capability,
            "warps": one.warps_per_unit,
            "blocks": one.blocks_per_unit,
            "register_bytes": one.register_bytes_per_unit,
            "shared_bytes": one.shared_bytes_per_unit,
        }
        for one in devices
    ]


def occupancy_data(
    device: str = "H100", *, threads: int = 256, registers: int = 64, shared_bytes: int = 0
) -> dict[str, Any]:
    """Data of the figure, which initially shows a GPU of the course's table and on one kernel.

    threads and shared_bytes are per block, registers per thread. InputError as in `occupancy`.
    """
    chosen = hardware.device(device)
    occupancy(chosen, threads, registers=registers, shared_bytes=shared_bytes)
    return {
        "devices": multiprocessor_data(one for one in DEVICES if one.compute_capability),
        "device": chosen.name,
        "threads": threads,
        "registers": registers,
        "shared_bytes": shared_bytes,
    }


def occupancy_table(data: Mapping[str, Any]) -> str:
    """HTML table of the kernel's occupancy by block size."""
    chosen, rows = hardware.device(data["device"]), []
    for threads in sorted({*_TABLE_THREADS, data["threads"]}):
        held = occupancy(chosen, threads, registers=data["registers"], shared_bytes=data["shared_bytes"])
        rows.append((threads, held.blocks, held.warps, f"{100 * held.occupancy:.3g} %", ", ".join(held.limits)))
    return table(("threads of a block", "blocks", "warps", "occupancy", "limited by"), rows)


class OccupancyCalculator(anywidget.AnyWidget):
    """Notebook calculator of resident blocks and warps: `OccupancyCalculator.of("H100", threads=256)`.

    devices: from `multiprocessor_data`. device: the one shown; an unknown name shows the first.
    """

    _esm = esm("occupancy")
    devices: traitlets.List[Any] = traitlets.List(traitlets.Dict(), minlen=1).tag(sync=True)
    device = traitlets.Unicode("H100").tag(sync=True)
    threads = traitlets.Int(256).tag(sync=True)
    registers = traitlets.Int(64).tag(sync=True)
    shared_bytes = traitlets.Int(0).tag(sync=True)

    @classmethod
    def of(cls, device: str = "H100", **sizes: int) -> Self:
        """Calculator that initially shows a GPU and a kernel; `sizes` are keyword arguments of `occupancy_data`."""
        return cls(**occupancy_data(device, **sizes))
