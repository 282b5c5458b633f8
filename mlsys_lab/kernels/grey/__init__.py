"""Brightness of a colour picture: three numbers in, one out, in interleaved or planar memory layout."""

from __future__ import annotations

import torch

from mlsys_lab.kernels.operation import perform

WEIGHTS = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in brightness (ITU-R BT.601-7, section 2.5.1)."""


def reference(picture: torch.Tensor) -> torch.Tensor:
    """Brightness (rows, columns) of an interleaved picture (rows, columns, 3), computed by torch."""
    red, green, blue = WEIGHTS
    return red * picture[..., 0] + green * picture[..., 1] + blue * picture[..., 2]


def grey(picture: torch.Tensor, *, language: str = "numba", step: str = "interleaved") -> torch.Tensor:
    """Brightness (rows, columns) of a contiguous picture, by a step of a language's `STEPS`.

    "interleaved" takes (rows, columns, 3), "planar" (3, rows, columns). Raises InputError for another picture, or an
    unknown language or step.
    """
    return perform("grey", language, step, picture)
