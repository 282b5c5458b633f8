"""Sum x + y in CUDA C++ (steps.cu)."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import arguments, cuda_cpp
from mlsys_lab.kernels.cuda_cpp.launcher import blocks_that_fill, starts_at_16_bytes

SOURCE = cuda_cpp.Source.read(Path(__file__).with_name("steps.cu"))
THREADS = 256
RESIDENT = {"grid_stride": 8, "vectorised": 4}
"""Resident blocks per multiprocessor by step, as its registers allow: one more would run alone at the end."""

STEPS = {
    "naive": "one thread per element",
    "grid_stride": "as many threads as are resident, each striding through the arrays",
    "vectorised": "16 bytes per load",
}


def run(step: str, x: torch.Tensor, y: torch.Tensor, *, launch: cuda_cpp.Launcher = cuda_cpp.launch) -> torch.Tensor:
    """Sum x + y of two contiguous fp32 tensors of one shape on a GPU; `launch` runs the kernel.

    Raises InputError for an unknown step and for tensors that do not match, MissingToolError without a GPU.
    """
    arguments.check_step(step, STEPS)
    arguments.check_contiguous((torch.float32,), x=x, y=y)
    arguments.check_shape(tuple(x.shape), y=y)
    z = torch.empty_like(x)
    elements = x.numel()
    if elements == 0:
        return z
    if step == "vectorised" and not starts_at_16_bytes(x, y):
        raise InputError("x and y must start at a multiple of 16 bytes for this step", help="pass a .clone()")
    wanted = math.ceil(elements / THREADS)
    blocks = wanted if step == "naive" else min(wanted, blocks_that_fill(x, RESIDENT[step]))
    launch(SOURCE, step, (blocks,), (THREADS,), x, y, z, elements)
    return z
