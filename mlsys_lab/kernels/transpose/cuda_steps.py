"""Transpose of a matrix in CUDA C++ (steps.cu)."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from mlsys_lab.kernels import arguments, cuda_cpp
from mlsys_lab.kernels.cuda_cpp.launcher import starts_at_16_bytes

SOURCE = cuda_cpp.Source.read(Path(__file__).with_name("steps.cu"))

STEPS = {
    "naive": "a thread an element: reads are coalesced, writes are not",
    "tiled": "a tile turns in shared memory: both are coalesced, columns of the tile lie in one bank",
    "padded": "a column more in each row of the tile: no bank conflicts",
    "vectorised": "sixteen bytes at a time, turned by fours in registers",
}

BLOCKS = {"naive": (32, 8), "tiled": (32, 8), "padded": (32, 8), "vectorised": (16, 16)}
TILES = {"naive": (32, 8), "tiled": (32, 32), "padded": (32, 32), "vectorised": (64, 64)}
"""Columns and rows of x that a block moves, by step."""


def run(step: str, x: torch.Tensor, *, launch: cuda_cpp.Launcher = cuda_cpp.launch) -> torch.Tensor:
    """Contiguous transpose of a contiguous fp32 matrix on a GPU; `launch` is the function that runs the kernel.

    Raises InputError for an unknown step and for a tensor that does not fit, MissingToolError without a GPU.
    """
    arguments.known_step(step, STEPS)
    arguments.alike((torch.float32,), x=x)
    arguments.of_rank(2, x=x)
    rows, columns = x.shape
    y = x.new_empty(columns, rows)
    if x.numel() == 0:
        return y
    wide, high = TILES[step]
    grid = (math.ceil(columns / wide), math.ceil(rows / high))
    kernel = step
    if step == "vectorised":
        aligned = rows % 4 == 0 and columns % 4 == 0 and starts_at_16_bytes(x)
        kernel = f"vectorised<{str(aligned).lower()}>"
    launch(SOURCE, kernel, grid, BLOCKS[step], x, y, rows, columns)
    return y
