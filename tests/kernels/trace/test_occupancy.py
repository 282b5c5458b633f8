"""Occupancy: against NVIDIA's own header, and by hand."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.hardware import DEVICES, Device, device
from mlsys_lab.kernels.trace.occupancy import occupancy, occupancy_of, shared_bytes
from tests.kernels.trace.launches import array, shared, trace

GPUS = [one for one in DEVICES if one.kind == "gpu"]
THREADS = (1, 32, 33, 96, 128, 256, 288, 512, 768, 1000, 1024)
REGISTERS = (1, 16, 24, 32, 37, 40, 48, 64, 72, 96, 128, 168, 200, 255)
SHARED = (0, 1, 4096, 8192, 12_345, 32 * 1024, 48 * 1024, 64 * 1024, 99 * 1024, 100 * 1024, 163 * 1024, 227 * 1024)
# NVIDIA's calculator for one GPU: blocks on a multiprocessor for every combination, in the order of the loops.
PROGRAM = """
#include <stdio.h>
#include "cuda_occupancy.h"
int main(void) {
  cudaOccDeviceProp gpu; cudaOccFuncAttributes kernel; cudaOccDeviceState state; cudaOccResult result;
  memset(&gpu, 0, sizeof gpu); memset(&kernel, 0, sizeof kernel); memset(&state, 0, sizeof state);
  gpu.computeMajor = MAJOR; gpu.computeMinor = MINOR; gpu.warpSize = 32;
  gpu.maxThreadsPerBlock = 1024; gpu.maxThreadsPerMultiprocessor = 32 * WARPS;
  gpu.regsPerBlock = gpu.regsPerMultiprocessor = 65536; gpu.numSms = 1;
  gpu.reservedSharedMemPerBlock = MAJOR >= 8 ? 1024 : 0;
  gpu.sharedMemPerBlock = 49152; gpu.sharedMemPerMultiprocessor = SHARED_BYTES;
  gpu.sharedMemPerBlockOptin = SHARED_BYTES - gpu.reservedSharedMemPerBlock;
  kernel.maxThreadsPerBlock = 1024; kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  kernel.maxDynamicSharedSizeBytes = gpu.sharedMemPerBlockOptin;
  state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
  int threads[] = {ALL_THREADS}, registers[] = {ALL_REGISTERS}, shared[] = {ALL_SHARED};
  for (size_t t = 0; t < sizeof threads / sizeof *threads; t++)
    for (size_t r = 0; r < sizeof registers / sizeof *registers; r++)
      for (size_t s = 0; s < sizeof shared / sizeof *shared; s++) {
        kernel.numRegs = registers[r];
        if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &gpu, &kernel, &state, threads[t], shared[s])) return 1;
        printf("%d %d %d\\n", result.activeBlocksPerMultiprocessor,
               result.allocatedRegistersPerBlock, (int)result.allocatedSharedMemPerBlock);
      }
  return 0;
}
"""


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_it_says_what_nvidias_header_says(gpu: Device, tmp_path: Path) -> None:
    compiler, triton = shutil.which("cc"), importlib.util.find_spec("triton")
    if not (compiler and triton and triton.origin):
        pytest.skip("needs a C compiler, and the header that comes with triton")
    include = Path(triton.origin).parent / "backends" / "nvidia" / "include"
    defined = dict(zip(("MAJOR", "MINOR"), gpu.compute_capability or (), strict=True))
    defined |= {"WARPS": gpu.warps_per_unit, "SHARED_BYTES": gpu.shared_bytes_per_unit}
    for name, amounts in (("ALL_THREADS", THREADS), ("ALL_REGISTERS", REGISTERS), ("ALL_SHARED", SHARED)):
        defined[name] = ",".join(map(str, amounts))
    (tmp_path / "header.c").write_text(PROGRAM)
    flags = [f"-D{name}={value}" for name, value in defined.items()]
    built = [compiler, *flags, f"-I{include}", "header.c", "-o", "header"]
    subprocess.run(built, cwd=tmp_path, check=True, capture_output=True)
    lines = iter(subprocess.run([tmp_path / "header"], check=True, capture_output=True, text=True).stdout.splitlines())
    for threads in THREADS:
        for registers in REGISTERS:
            for size in SHARED:
                held = occupancy(gpu, threads, registers=registers, shared_bytes=size)
                warps = -(-threads // 32)
                said = (held.blocks, held.registers_per_warp * warps, held.shared_bytes_per_block)
                assert said == tuple(map(int, next(lines).split())), (threads, registers, size)


def test_each_limit_by_hand() -> None:
    # H100: 64 warps, 32 blocks, 65,536 registers, 228 KiB.
    h100 = device("H100")
    free = occupancy(h100, 128, registers=16)  # 4 warps a block
    assert free.by == {"blocks": 32, "warps": 16, "registers": 32, "shared memory": 228}
    assert (free.blocks, free.warps, free.occupancy, free.limits) == (16, 64, 1.0, ("warps",))
    small = occupancy(h100, 32, registers=32)
    assert (small.blocks, small.occupancy, small.limits) == (32, 0.5, ("blocks",))
    # 33 registers x 32 = 1056, given as 1280: 12 warps in a quarter of 16,384, 48 in all.
    greedy = occupancy(h100, 256, registers=33)
    assert (greedy.registers_per_warp, greedy.blocks, greedy.occupancy, greedy.limits) == (
        1280,
        6,
        0.75,
        ("registers",),
    )
    # 48 KiB and the block's own 1 KiB: four of them in 228 KiB.
    tiled = occupancy(h100, 128, registers=32, shared_bytes=48 * 1024)
    assert (tiled.shared_bytes_per_block, tiled.blocks, tiled.limits) == (49 * 1024, 4, ("shared memory",))


def test_a_block_that_does_not_fit_is_held_zero_times() -> None:
    assert occupancy(device("A100 40GB"), 32, registers=8, shared_bytes=163 * 1024).blocks == 1
    too_much = occupancy(device("A100 40GB"), 32, registers=8, shared_bytes=163 * 1024 + 1)
    assert (too_much.blocks, too_much.warps, too_much.occupancy, too_much.limits) == (0, 0, 0.0, ("shared memory",))
    assert occupancy(device("H100"), 1024, registers=65).limits == ("registers",)


def test_a_partial_warp_takes_a_whole_one() -> None:
    assert occupancy(device("T4"), 33, registers=32) == occupancy(device("T4"), 64, registers=32)


def test_a_trace_brings_its_block_and_its_shared_arrays() -> None:
    tiles = [shared("a", (32, 32), start=0), shared("b", (32, 33), start=4096)]
    launch = trace([], buffers=tiles, block=(32, 8, 1))
    assert shared_bytes(launch) == 4096 + 32 * 33 * 4
    held = occupancy_of(launch, device("H100"), registers=40)
    assert held == occupancy(device("H100"), 256, registers=40, shared_bytes=4096 + 4224)
    assert shared_bytes(trace([], buffers=[array("x", 8)])) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"threads": 0}, "threads out of range: got 0, expected 1 to 1024"),
        ({"threads": 1025}, "threads out of range"),
        ({"registers": 256}, "registers out of range: got 256, expected 1 to 255"),
        ({"shared_bytes": -1}, "shared_bytes must not be negative: got -1"),
        ({"device": device("TPU v4")}, "TPU v4 has no streaming multiprocessors: expected an NVIDIA GPU"),
        ({"device": replace(device("H100"), warps_per_unit=None)}, "no streaming multiprocessors"),
    ],
)
def test_bad_input_is_one_line(change: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        occupancy(**({"device": device("H100"), "threads": 128, "registers": 32} | change))
    assert "\n" not in str(caught.value)
