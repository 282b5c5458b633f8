"""Occupancy: how many blocks and warps a streaming multiprocessor holds at once, and what keeps it from holding more.

The rules are those of NVIDIA's `cuda_occupancy.h` (CUDA 13.0). Registers are given to whole warps in units of 256, out
of the quarter of the register file that belongs to a warp's scheduler. Shared memory is given in units of 128 bytes,
and each block takes 1 KiB more than its arrays (from compute capability 8.0 on; before, in units of 256 and no more).
Left out: that shared memory and L1 cache divide one memory between them, and a launch may be set to take less of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_lab.errors import InputError
from mlsys_lab.hardware import Device
from mlsys_lab.kernels.trace.events import WARP, Trace

MOST_THREADS = 1024  # of a block
MOST_REGISTERS = 255  # of a thread
REGISTER_UNIT = 256
SCHEDULERS = 4  # of a multiprocessor: each has a quarter of the registers, and of a block's warps


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps of one kind of launch that one multiprocessor holds at once."""

    blocks: int
    warps: int
    occupancy: float  # warps over the most that the multiprocessor can hold, in [0, 1]
    by: dict[str, int]  # blocks that each of its limits would allow: "blocks", "warps", "registers", "shared memory"
    registers_per_warp: int  # as given, not as asked for
    shared_bytes_per_block: int  # likewise

    @property
    def limits(self) -> tuple[str, ...]:
        """Names of the resources that set the number of blocks, such as "registers"."""
        return tuple(limit for limit, blocks in self.by.items() if blocks == self.blocks)


def occupancy(device: Device, threads: int, *, registers: int, shared_bytes: int = 0) -> Occupancy:
    """Occupancy of one multiprocessor with blocks of `threads` threads, `registers` a thread, `shared_bytes` a block.

    Zero blocks where not even one fits: such a launch fails. `InputError` where the device has no multiprocessors or a
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
    for what, amount, most in (("threads", threads, MOST_THREADS), ("registers", registers, MOST_REGISTERS)):
        if not 1 <= amount <= most:
            raise InputError(f"{what} out of range", got=amount, expected=f"1 to {most}")
    if shared_bytes < 0:
        raise InputError("shared_bytes must not be negative", got=shared_bytes)
    warps = -(-threads // WARP)
    per_warp = _up(registers * WARP, REGISTER_UNIT)
    unit, reserved = (128, 1024) if capability >= (8, 0) else (256, 0)
    shared = _up(shared_bytes + reserved, unit)
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
    """Occupancy of a multiprocessor with a traced launch: its block and shared arrays, `registers` a thread."""
    return occupancy(device, trace.threads, registers=registers, shared_bytes=shared_bytes(trace))


def shared_bytes(trace: Trace) -> int:
    """Bytes of shared memory that the arrays of a block take, the gaps between them included."""
    return max((buffer.start + buffer.size_bytes for buffer in trace.buffers if buffer.space == "shared"), default=0)


def _up(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit
