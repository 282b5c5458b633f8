"""Launching a Triton kernel: on the device of its arrays, or in the interpreter."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.runtime import triton_interprets


def launch(kernel: Any, grid: tuple[int, ...], device: torch.device, *args: Any, **constants: Any) -> None:
    """Run `kernel` over `grid`, programs along x, y and z; nothing happens where a side is 0.

    InputError for arrays on the CPU where kernels are compiled.
    """
    if 0 in grid:
        return
    if triton_interprets():
        with silent_arithmetic():
            kernel[grid](*args, **constants)
        return
    if device.type != "cuda":
        raise InputError(
            "a compiled Triton kernel needs arrays on the GPU",
            got=device,
            help="or start Python with TRITON_INTERPRET=1",
        )
    with torch.cuda.device(device):
        kernel[grid](*args, **constants)


@contextmanager
def silent_arithmetic() -> Iterator[None]:
    """NumPy, which computes for the interpreter, says as little of overflow and NaN as a GPU does."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
