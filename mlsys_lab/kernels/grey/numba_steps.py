"""Brightness in Numba's CUDA: the same arithmetic on two layouts of a picture."""

from __future__ import annotations

import math

import numpy as np
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import arguments
from mlsys_lab.kernels.grey import WEIGHTS
from mlsys_lab.kernels.numba_language import cuda
from mlsys_lab.kernels.numba_launch import Launcher, launch

BLOCK = (32, 4)
"""Threads of a block along columns and rows: a warp takes 32 pixels of one row."""

RED, GREEN, BLUE = (np.float32(weight) for weight in WEIGHTS)
"""Weights of the colours as float32: a Python float would make the kernel compute in float64."""

STEPS = {
    "interleaved": "red, green and blue of a pixel next to each other: a warp's load takes every third element",
    "planar": "one plane after the other: a warp's load takes 32 consecutive elements",
}


@cuda.jit
def interleaved(picture, brightness):
    """Brightness of a picture (rows, columns, 3), one pixel per thread."""
    column, row = cuda.grid(2)
    if row < brightness.shape[0] and column < brightness.shape[1]:
        red, green, blue = picture[row, column, 0], picture[row, column, 1], picture[row, column, 2]
        brightness[row, column] = RED * red + GREEN * green + BLUE * blue


@cuda.jit
def planar(picture, brightness):
    """Brightness of a picture (3, rows, columns), one pixel per thread."""
    column, row = cuda.grid(2)
    if row < brightness.shape[0] and column < brightness.shape[1]:
        red, green, blue = picture[0, row, column], picture[1, row, column], picture[2, row, column]
        brightness[row, column] = RED * red + GREEN * green + BLUE * blue


def run(step: str, picture: torch.Tensor, *, launch: Launcher = launch) -> torch.Tensor:
    """Brightness (rows, columns) of a contiguous fp32 picture in the step's layout.

    Raises InputError for an unknown step and for a tensor that is no picture.
    """
    arguments.check_step(step, STEPS)
    arguments.check_contiguous((torch.float32,), picture=picture)
    arguments.check_rank(3, picture=picture)
    channels = picture.shape[-1 if step == "interleaved" else 0]
    if channels != 3:
        raise InputError(f"channels of a picture for step {step!r}", got=tuple(picture.shape), expected="3 of them")
    rows, columns = picture.shape[:2] if step == "interleaved" else picture.shape[1:]
    brightness = picture.new_empty(rows, columns)
    if brightness.numel() == 0:
        return brightness
    grid = (math.ceil(columns / BLOCK[0]), math.ceil(rows / BLOCK[1]))
    launch(interleaved if step == "interleaved" else planar, grid, BLOCK, picture, brightness, outputs=("brightness",))
    return brightness
