"""What the steps in CUDA C++ ask of a multiprocessor: no spills, no more registers and bytes than a block can have."""

import math

import pytest
import torch

from mlsys_lab.hardware import device
from mlsys_lab.kernels import cuda_cpp
from mlsys_lab.kernels.grey import cuda_steps as grey
from mlsys_lab.kernels.matmul import cuda_steps as matmul
from mlsys_lab.kernels.reduction import cuda_steps as reduction
from mlsys_lab.kernels.trace.occupancy import occupancy
from mlsys_lab.kernels.transpose import cuda_steps as transpose
from mlsys_lab.kernels.vector_add import cuda_steps as vector_add
from tests.sampling import keep

REGISTERS = 65536
SHARED_BYTES = {"sm_80": 163 * 1024, "sm_90": 227 * 1024}
"""Of a block, at most (CUDA C++ Programming Guide, technical specifications per compute capability)."""


class Launches(list):
    """A launcher that runs nothing and keeps what was asked for."""

    def __call__(self, source, kernel, grid, block, *arguments, shared_bytes=0):
        self.append((source, kernel, math.prod(block), shared_bytes))


def launches():
    kept = Launches()
    for start in (0, 1):  # at a multiple of sixteen bytes, and not
        x = torch.zeros(4097)[start : start + 4096]
        if start == 0:
            for step in vector_add.STEPS:
                vector_add.run(step, x, x, launch=kept)
            for step in reduction.STEPS:
                reduction.run(step, x, launch=kept)
            for step in grey.STEPS:
                grey.run(step, x[:192].view(3, 64, 1) if step == "planar" else x[:192].view(64, 1, 3), launch=kept)
        x = x.view(64, 64)
        for step in transpose.STEPS:
            transpose.run(step, x, launch=kept)
        h = torch.zeros(4097, dtype=torch.bfloat16)[start : start + 4096].view(64, 64)
        for step in matmul.STEPS:
            a = h if step == "tensor_cores" else x
            matmul.run(step, a, a, launch=kept)
        for tiles in matmul.TUNED_FP32:
            matmul.run("warp_tile", x, x, tiles=tiles, launch=kept)
        for tiles in matmul.TUNED_BF16:
            matmul.run("tensor_cores", h, h, tiles=tiles, launch=kept)
    return sorted(set(kept), key=lambda one: (one[0].text, one[1]))


@pytest.mark.parametrize("arch", keep([*SHARED_BYTES], ["sm_90"]))
@pytest.mark.parametrize(
    ("source", "kernel", "threads", "dynamic_bytes"), launches(), ids=lambda value: str(getattr(value, "name", value))
)
def test_a_block_fits_and_nothing_spills(source, kernel, threads, dynamic_bytes, arch):
    found = cuda_cpp.compile_cuda(source.text, (kernel,), name=source.name, arch=arch).resources[kernel]
    assert (found.spill_bytes, found.stack_bytes) == (0, 0)
    assert math.ceil(found.registers / 8) * 8 * threads <= REGISTERS
    assert found.shared_bytes <= 48 * 1024
    assert found.shared_bytes + dynamic_bytes <= SHARED_BYTES[arch]


@pytest.mark.parametrize(
    ("module", "kernel", "resident"),
    (
        (vector_add, "grid_stride", vector_add.RESIDENT["grid_stride"]),
        (vector_add, "vectorised", vector_add.RESIDENT["vectorised"]),
        (reduction, f"one_pass<{reduction.THREADS}, {reduction.LOADS}>", reduction.RESIDENT),
    ),
)
def test_blocks_that_stay_are_all_on_the_device_at_once(module, kernel, resident):
    found = cuda_cpp.compile_cuda(module.SOURCE.text, (kernel,), name=module.SOURCE.name).resources[kernel]
    held = occupancy(device("H100"), module.THREADS, registers=found.registers, shared_bytes=found.shared_bytes)
    assert held.blocks >= resident
