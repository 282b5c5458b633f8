"""How the rows of a matrix are given to Triton programs, for kernels that work row by row.

N rows of D elements. A program takes a block of `rows` whole rows, `block` elements wide (D rounded up to a power of
two), which its threads hold in registers. Enough threads that none holds many elements; enough rows that a program has
work for its threads where D is small.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mlsys_lab.errors import InputError

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""dtypes that kernels which work row by row read and write; they compute in float32."""

MOST_WARPS = 32
"""Most warps of one program on an NVIDIA GPU."""


@dataclass(frozen=True)
class RowBlock:
    """The rows and columns that one program holds at a time, and how many warps hold them."""

    rows: int
    block: int
    warps: int

    def programs(self, rows: int) -> int:
        """Number of programs for so many rows, each taking one block."""
        return -(-rows // self.rows)


def row_block(width: int, *, elements: int, per_thread: int, least_warps: int = 4) -> RowBlock:
    """Choose a block of about `elements` elements for rows `width` wide, at most `per_thread` of them in a thread.

    >>> row_block(1000, elements=4096, per_thread=32)
    RowBlock(rows=4, block=1024, warps=4)
    """
    block = power_of_two(width)
    rows = max(1, elements // block)
    warps = min(MOST_WARPS, max(least_warps, rows * block // (32 * per_thread)))
    return RowBlock(rows, block, warps)


def power_of_two(n: int) -> int:
    """The least power of two that is not below n, at least 1.

    >>> [power_of_two(n) for n in (0, 1, 5, 64)]
    [1, 1, 8, 64]
    """
    return 1 << max(0, n - 1).bit_length()


def rows_and_width(x: torch.Tensor, name: str = "x") -> tuple[int, int]:
    """N and D of a tensor (…, D); InputError for no dimensions or rows of no elements."""
    if x.ndim == 0:
        raise InputError(f"{name} has no dimension to go along", got="shape ()", expected="(…, D)")
    width = x.shape[-1]
    if width == 0:
        raise InputError(
            f"rows of {name} have no elements", got=f"shape {tuple(x.shape)}", expected="(…, D), D at least 1"
        )
    return x.numel() // width, width
