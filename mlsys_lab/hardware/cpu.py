"""This machine's CPU as a `Device`, with measured rates, since no data sheet gives them."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

from mlsys_lab.errors import MissingToolError
from mlsys_lab.hardware.device import Device

COPY_BYTES = 2**27
"""Bytes of the copied array, 128 MiB: larger than a laptop's last-level cache, so the copy is memory-bound."""
MATMUL_N = 1536
"""Side of the multiplied matrices, large enough (3.6e9 multiply-adds) to make starting the threads negligible."""
REPEATS = 9


def measure_cpu() -> Device:
    """Measure the copy bandwidth (bytes read plus bytes written) and fp32 matmul rate of this CPU with torch's threads.

    Medians of a few repeats after a warm-up; takes about a second. These are achieved rates, below the true peaks.
    `MissingToolError` without torch.
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise MissingToolError("measuring the CPU needs torch", help="pip install torch") from None
    a = torch.ones(MATMUL_N, MATMUL_N, dtype=torch.float32)
    product = torch.empty_like(a)
    matmul_s = _median_s(lambda: torch.mm(a, a, out=product))
    return Device(
        name=cpu_name(),
        kind="cpu",
        year=date.today().year,
        peaks={"fp32": 2 * MATMUL_N**3 / matmul_s},
        memory_bytes=memory_bytes(),
        memory_bandwidth_bytes_per_s=measure_copy_bandwidth(),
        units=torch.get_num_threads(),
        source="measured on this machine",
        checked=date.today(),
        note=f"copy of {COPY_BYTES >> 20} MiB, fp32 matmul of {MATMUL_N}³, {torch.get_num_threads()} threads",
    )


def measure_copy_bandwidth() -> float:
    """Measure the bytes per second, read plus written, at which this CPU copies a large array with torch's threads."""
    import torch

    source = torch.ones(COPY_BYTES // 4, dtype=torch.float32)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / _median_s(lambda: target.copy_(source))


def cpu_name() -> str:
    """The processor's name as the operating system reports it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_bytes() -> float:
    """Bytes of main memory of this machine; needs a POSIX system."""
    if not hasattr(os, "sysconf"):
        raise MissingToolError("the size of memory is asked of a POSIX system", help="on Windows, use WSL")
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _median_s(call: Callable[[], object]) -> float:
    call()
    samples = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)
