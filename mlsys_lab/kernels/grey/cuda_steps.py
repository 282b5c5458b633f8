"""Brightness of a picture in CUDA C++ (steps.cu)."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import arguments, cuda_cpp
from mlsys_lab.kernels.cuda_cpp.launcher import starts_at_16_bytes

SOURCE = cuda_cpp.Source.read(Path(__file__).with_name("steps.cu"))
THREADS = 256

STEPS = {
    "interleaved": "red, green and blue of a pixel side by side: a warp's load takes every third number",
    "planar": "one plane after the other: a warp's load takes 32 numbers in a row",
    "vectorised": "side by side, four pixels a thread: sixteen bytes at a time",
}


def run(step: str, picture: torch.Tensor, *, launch: cuda_cpp.Launcher = cuda_cpp.launch) -> torch.Tensor:
    """Brightness (rows, columns) of a contiguous fp32 picture on a GPU; `launch` is the function that runs the kernel.

    The picture is (3, rows, columns) for "planar", else (rows, columns, 3).
    Raises InputError for an unknown step and for a tensor that is no picture, MissingToolError without a GPU.
    """
    arguments.known_step(step, STEPS)
    arguments.alike((torch.float32,), picture=picture)
    arguments.of_rank(3, picture=picture)
    size = picture.shape[1:] if step == "planar" else picture.shape[:2]
    if picture.shape[0 if step == "planar" else 2] != 3:
        raise InputError(f"channels of a picture for step {step!r}", got=tuple(picture.shape), expected="3 of them")
    brightness = picture.new_empty(size)
    pixels = brightness.numel()
    if pixels == 0:
        return brightness
    if step == "vectorised" and not starts_at_16_bytes(picture):
        raise InputError("the picture must start at a multiple of 16 bytes for this step", help="pass a .clone()")
    each = 4 * THREADS if step == "vectorised" else THREADS
    launch(SOURCE, step, (math.ceil(pixels / each),), (THREADS,), picture, brightness, pixels)
    return brightness
