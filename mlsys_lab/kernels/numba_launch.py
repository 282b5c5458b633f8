"""Launch Numba kernels: on the GPU for tensors there, in the simulator for tensors in host memory."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.runtime import load_numba, numba_simulates
from mlsys_lab.kernels.trace.events import Trace
from mlsys_lab.kernels.trace.numba_simulator import record, run

Extent = int | tuple[int, ...]


class Launcher(Protocol):
    """Type of functions that run a kernel; `outputs` names the parameters that the kernel fills."""

    def __call__(self, kernel: Any, grid: Extent, block: Extent, *args: Any, outputs: tuple[str, ...] = ()) -> None:
        """Run `kernel[grid, block](*args)`; `outputs` names the parameters that the kernel fills."""


def launch(kernel: Any, grid: Extent, block: Extent, *args: Any, outputs: tuple[str, ...] = ()) -> None:
    """Run `kernel[grid, block](*args)` on the device of its tensors.

    Raises InputError for tensors on two devices, or on a GPU while Numba simulates, and the simulator's errors.
    """
    devices = {arg.device for arg in args if isinstance(arg, torch.Tensor)} or {torch.device("cpu")}
    device, *others = sorted(devices, key=str)
    if others:
        raise InputError("tensors of a launch are on two devices", got=f"{device} and {others[0]}")
    if device.type == "cpu":
        run(kernel, grid, block, *args)
        return
    if device.type != "cuda":
        raise InputError("tensors of a launch", got=f"on {device}", expected="on cpu or cuda")
    if numba_simulates():
        help = "start Python without NUMBA_ENABLE_CUDASIM, or use tensors in the host's memory"
        raise InputError("Numba simulates, but tensors are on a GPU", help=help)
    cuda = load_numba()
    with torch.cuda.device(device), cuda.gpus[device.index]:
        stream = cuda.external_stream(torch.cuda.current_stream(device).cuda_stream)
        arrays = (cuda.as_cuda_array(arg.detach()) if isinstance(arg, torch.Tensor) else arg for arg in args)
        kernel[grid, block, stream](*arrays)


class Recorder:
    """Launcher that runs kernels in the simulator and keeps the trace of each launch in `traces`."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []

    def __call__(self, kernel: Any, grid: Extent, block: Extent, *args: Any, outputs: tuple[str, ...] = ()) -> None:
        """Run the kernel in the simulator and append its trace to `traces`."""
        self.traces.append(record(kernel, grid, block, *args, outputs=outputs))
