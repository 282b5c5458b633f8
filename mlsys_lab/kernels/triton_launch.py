"""Launching a Triton kernel: on the device of its arrays, in the interpreter, or before somebody who looks on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.runtime import triton_interprets

_instead: ContextVar[Callable[..., None] | None] = ContextVar("instead of launching", default=None)


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    device: torch.device,
    *args: Any,
    outputs: Sequence[str] = (),
    **constants: Any,
) -> None:
    """Run `kernel` over `grid`, programs along x, y and z; nothing happens where a side is 0.

    `outputs` names the parameters whose arrays hold nothing before; it matters to those who look on. InputError for
    arrays on the CPU where kernels are compiled.
    """
    if 0 in grid:
        return
    if (instead := _instead.get()) is not None:
        instead(kernel, grid, *args, outputs=outputs, **constants)
    elif triton_interprets():
        with silent_arithmetic():
            kernel[grid](*args, **constants)
    elif device.type == "cuda":
        with torch.cuda.device(device):
            kernel[grid](*args, **constants)
    else:
        raise InputError(
            "a compiled Triton kernel needs arrays on the GPU",
            got=device,
            help="or start Python with TRITON_INTERPRET=1",
        )


@contextmanager
def launching(instead: Callable[..., None]) -> Iterator[None]:
    """Within: `instead(kernel, grid, *args, outputs=…, **constants)` in the place of every launch."""
    token = _instead.set(instead)
    try:
        yield
    finally:
        _instead.reset(token)


@contextmanager
def silent_arithmetic() -> Iterator[None]:
    """NumPy, which computes for the interpreter, says as little of overflow and NaN as a GPU does."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
