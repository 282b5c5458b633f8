"""Occupancy: resident blocks and warps of a streaming multiprocessor, and the resources that limit them.

The rules are those of NVIDIA's `cuda_occupancy.h` (CUDA 13.0). Registers are allocated per warp in units of 256, from
the quarter of the register file that belongs to the warp's scheduler. Shared memory is allocated in units of 128 bytes,
and each block takes 1 KiB more than its arrays (from compute capability 8.0 on; before, in units of 256 and no more).
Not modelled: the split of one memory between shared memory and L1 cache, which a launch can configure.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_lab.errors import InputError
from mlsys_lab.hardware import Device
from mlsys_lab.kernels.trace.events import WARP, Trace

MAX_THREADS = 1024  # of a block
MAX_REGISTERS = 255  # of a thread
REGISTER_UNIT = 256
SCHEDULERS = 4  # of a multiprocessor: each has a quarter of the registers, and of a block's warps


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks and warps of a launch on one multiprocessor."""

    blocks: int
    warps: int
    occupancy: float  # resident warps over the maximum, in [0, 1]
    by: dict[str, int]  # blocks that each limit allows: "blocks", "warps", "registers", "shared memory"
    registers_per_warp: int  # as allocated, not as requested
    shared_bytes_per_block: int  # likewise

    @property
    def limits(self) -> tuple[str, ...]:
        """Names of the resources that limit the number of blocks, such as "registers"."""
        return tuple(limit for limit, blocks in self.by.items() if blocks == self.blocks)


def occupancy(device: Device, threads: int, *, registers: int, shared_bytes: int = 0) -> Occupancy:
    """Occupancy of one multiprocessor with `threads` and `shared_bytes` per block and `registers` per thread.

    Zero blocks if not even one fits: such a launch fails. Raises InputError if the device has no multiprocessors or a
    size is out of range.

    >>> from mlsys_lab.hardware import device
    >>> held = occupancy(device("H100"), 256, registers=64, shared_bytes=48 * 1024)
    >>> held.blocks, held.warps, held.occupancy, held.limits
    (4, 32, 0.5, ('registers', 'shared memory'))
    """
    at_most_warps, at_most_blocks, capability = device.warps_per_unit, device.blocks_per_unit, device.compute_capability
    all_registers, all_shared = device.register_bytes_per_unit, device.shared_bytes_per_unit
    if not (at_most_warps and at_most_blocks and capability and all_registers and all_shared):
        raise InputError(f"{device.name} has no streaming multiprocessors", expected="an NVIDIA GPU")
    for what, amount, most in (("threads", threads, MAX_THREADS), ("registers", registers, MAX_REGISTERS)):
        if not 1 <= amount <= most:
            raise InputError(f"{what} out of range", got=amount, expected=f"1 to {most}")
    if shared_bytes < 0:
        raise InputError("shared_bytes must not be negative", got=shared_bytes)
    warps = -(-threads // WARP)
    per_warp = _round_up(registers * WARP, REGISTER_UNIT)
    unit, reserved = (128, 1024) if capability >= (8, 0) else (256, 0)
    shared = _round_up(shared_bytes + reserved, unit)
    warps_by_registers = SCHEDULERS * (all_registers // 4 // SCHEDULERS // per_warp)
    by = {
        "blocks": at_most_blocks,
        "warps": at_most_warps // warps,
        "registers": warps_by_registers // warps,
        "shared memory": all_shared // shared if shared else at_most_blocks,
    }
    blocks = min(by.values())
    return Occupancy(
        blocks=blocks,
        warps=blocks * warps,
        occupancy=blocks * warps / at_most_warps,
        by=by,
        registers_per_warp=per_warp,
        shared_bytes_per_block=shared,
    )


def occupancy_of(trace: Trace, device: Device, *, registers: int) -> Occupancy:
    """Occupancy of one multiprocessor with a traced launch's block and shared arrays, and `registers` per thread."""
    return occupancy(device, trace.threads, registers=registers, shared_bytes=shared_bytes(trace))


def shared_bytes(trace: Trace) -> int:
    """Bytes of shared memory of a block's arrays, gaps included."""
    return max((buffer.start + buffer.size_bytes for buffer in trace.buffers if buffer.space == "shared"), default=0)


def _round_up(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit
