"""Sum x + y in Numba's CUDA, step by step."""

from __future__ import annotations

import math

import torch

from mlsys_lab.kernels import arguments
from mlsys_lab.kernels.numba_language import cuda
from mlsys_lab.kernels.numba_launch import Launcher, launch

DTYPES = (torch.float16, torch.float32, torch.float64)
THREADS = 128
MAX_BLOCKS = 1056
"""Largest grid: eight blocks for each of an H100's 132 multiprocessors, since more would only wait."""

STEPS = {
    "naive": "one thread per element, threads beyond the end masked off",
    "grid_stride": "a fixed number of threads, each striding through the arrays",
}


@cuda.jit
def naive(x, y, z):
    """Sum with one element per thread."""
    i = cuda.grid(1)
    if i < z.size:
        z[i] = x[i] + y[i]


@cuda.jit
def grid_stride(x, y, z):
    """Sum with a grid-stride loop: lanes of a warp access consecutive elements in every iteration."""
    for i in range(cuda.grid(1), z.size, cuda.gridsize(1)):
        z[i] = x[i] + y[i]


def run(
    step: str, x: torch.Tensor, y: torch.Tensor, *, blocks: int = MAX_BLOCKS, launch: Launcher = launch
) -> torch.Tensor:
    """Sum x + y of two contiguous tensors of one shape; `blocks` is the largest grid of "grid_stride".

    Raises InputError for an unknown step and for tensors that do not match.
    """
    arguments.check_step(step, STEPS)
    arguments.check_contiguous(DTYPES, x=x, y=y)
    arguments.check_shape(tuple(x.shape), y=y)
    z = torch.empty_like(x)
    if z.numel() == 0:
        return z
    wanted = math.ceil(z.numel() / THREADS)
    flat = (tensor.view(-1) for tensor in (x, y, z))
    if step == "naive":
        launch(naive, wanted, THREADS, *flat, outputs=("z",))
    else:
        launch(grid_stride, min(wanted, blocks), THREADS, *flat, outputs=("z",))
    return z
