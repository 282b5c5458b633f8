"""Sum of a tensor in CUDA C++ (steps.cu)."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import arguments, cuda_cpp
from mlsys_lab.kernels.cuda_cpp.launcher import blocks_that_fill, starts_at_16_bytes

SOURCE = cuda_cpp.Source.read(Path(__file__).with_name("steps.cu"))
THREADS, LOADS = 256, 4
RESIDENT = 4
"""Blocks of "one_pass" for each multiprocessor, as many as its registers hold."""

STEPS = {
    "interleaved": "a tree in shared memory with partners 1, 2, 4 … apart",
    "sequential": "a tree with partners THREADS / 2 … 2, 1 apart: whole warps retire",
    "warp_shuffle": "a warp reduces in registers, shared memory holds one number per warp",
    "one_pass": "each thread adds many elements first, the last block to finish adds the blocks' sums",
}


def run(step: str, x: torch.Tensor, *, launch: cuda_cpp.Launcher = cuda_cpp.launch) -> torch.Tensor:
    """Sum of a contiguous fp32 tensor on a GPU, as a 0-dimensional tensor; 0 for an empty one.

    `launch` is what runs a kernel. Raises InputError for an unknown step and for a tensor that does not fit,
    MissingToolError without a GPU.
    """
    arguments.check_step(step, STEPS)
    arguments.check_contiguous((torch.float32,), x=x)
    if x.numel() == 0:
        return x.new_zeros(())
    if step == "one_pass":
        return _one_pass(x, launch)
    left = x.reshape(-1)
    while True:
        sums = x.new_empty(math.ceil(left.numel() / THREADS))
        launch(SOURCE, f"{step}<{THREADS}>", (sums.numel(),), (THREADS,), left, sums, left.numel())
        if sums.numel() == 1:
            return sums[0]
        left = sums


def _one_pass(x: torch.Tensor, launch: cuda_cpp.Launcher) -> torch.Tensor:
    if not starts_at_16_bytes(x):
        raise InputError("x must start at a multiple of 16 bytes for this step", help="pass a .clone()")
    blocks = min(math.ceil(x.numel() / (4 * THREADS)), blocks_that_fill(x, RESIDENT))
    sums, total = x.new_empty(blocks), x.new_empty(())
    finished = torch.zeros((), dtype=torch.int32, device=x.device)
    kernel = f"one_pass<{THREADS}, {LOADS}>"
    launch(SOURCE, kernel, (blocks,), (THREADS,), x, sums, finished, total, x.numel())
    return total
