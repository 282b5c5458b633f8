"""A GPU inside the sandbox: the files that CUDA opens, and which parts of the policy are relaxed.

    device files   the control file, unified memory, and one GPU; no other GPU of the machine
    libraries      the driver's, below /usr/lib on most systems; the toolkit
    /sys           read-only, what the driver reads about the bus
    /proc          the job's own process namespace; other jobs have none
    RLIMIT_DATA    none: CUDA reserves far more address space than it uses. `inside.watch` limits host memory; device
                   memory is limited by the device alone, so one submission at a time uses it
    seccomp        the same filter, without what CUDA needs to start: `memfd_create`, shared anonymous memory

What a driver needs differs between versions. This list follows the driver's documentation and what other sandboxes pass
on. It is untested on a GPU; tests only show that the sandbox is built as listed. Sources: NVIDIA's driver README,
chapter "Device files"; libnvidia-container; the nvproxy notes of gVisor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlsys_lab.errors import InputError

CONTROL = "nvidiactl"
SHARED_NODES = (CONTROL, "nvidia-uvm", "nvidia-uvm-tools", "dxg")
"""Device files that all GPUs share; the last one is WSL's, in place of all others."""
DRIVER_FOLDERS = ("/usr/lib/wsl", "/usr/local/nvidia", "/usr/local/cuda", "/run/opengl-driver", "/opt/nvidia")
SYSTEM = ("/sys/bus/pci", "/sys/devices", "/sys/module/nvidia")
HOST_MEMORY_BYTES = 16 << 30
"""What a timed process may hold in the host's memory, the CUDA context and pinned buffers included."""


@dataclass(frozen=True)
class Gpu:
    """The GPU number `index` of those whose files lie below `root`, counted from 0; a device that a sandbox can let in.

    `torch_device` is its name for torch, in a process that sees this GPU only.
    """

    index: int = 0
    root: Path = Path("/")
    torch_device: str = "cuda"

    def nodes(self) -> list[Path]:
        """The device files of this GPU that are there; none without a driver."""
        dev = self.root / "dev"
        found = [dev / name for name in SHARED_NODES if (dev / name).exists()]
        numbers = sorted(int(path.name[6:]) for path in dev.glob("nvidia*") if path.name[6:].isdigit())
        if self.index < len(numbers):  # a container that was given the second GPU alone has nvidia1 alone
            return [*found, dev / f"nvidia{numbers[self.index]}"]
        return [path for path in found if path.name == "dxg"]

    def bubblewrap_arguments(self) -> list[str]:
        """Arguments for bubblewrap that bind device files and driver; empty without a driver."""
        files = self.nodes()
        if not files:
            return []
        command: list[str] = []
        for path in files:
            command += ["--dev-bind", str(path), f"/dev/{path.name}"]
        for name in (*DRIVER_FOLDERS, *SYSTEM):
            path = self.root / name.removeprefix("/")
            if path.exists() and not name.startswith("/usr/lib/"):  # that is there already
                command += ["--ro-bind", str(path), name]
        return command

    def container_arguments(self, program: str) -> list[str]:
        """Arguments for `docker run` or `podman run`: the vendor's runtime does the rest."""
        if program == "podman":
            return ["--device", f"nvidia.com/gpu={self.index}"]
        return ["--gpus", f"device={self.index}"]

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which clean processes, which see all GPUs, count them as /dev does and use this one."""
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(self.index)}


def find_gpu(environ: Mapping[str, str] = os.environ) -> Gpu:
    """Find the GPU assigned to this process by Ray or a batch system, else the machine's first."""
    first = environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    if not first:
        return Gpu()
    if not first.isdigit():
        raise InputError(
            "CUDA_VISIBLE_DEVICES names a GPU that has no device file of that name", got=first, expected="its number"
        )
    return Gpu(int(first))
