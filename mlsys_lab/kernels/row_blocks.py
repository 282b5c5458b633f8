"""Tiling of a matrix's rows for Triton kernels that work row by row.

N rows of D elements. A program takes a block of `rows` full rows, `block` elements wide (D rounded up to a power of
two), and holds it in registers. Warps are added so that no thread holds many elements; rows are added so that a program
has work for its threads when D is small.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mlsys_lab.errors import InputError

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""dtypes that row-by-row kernels load and store; they compute in float32."""

MAX_WARPS = 32
"""Warps of the largest program on an NVIDIA GPU."""


@dataclass(frozen=True)
class RowBlock:
    """Rows and columns that one program holds at a time, and the number of warps that hold them."""

    rows: int
    block: int
    num_warps: int

    def num_programs(self, num_rows: int) -> int:
        """Programs needed for `num_rows` rows, one block each."""
        return -(-num_rows // self.rows)


def row_block(width: int, *, elements: int, per_thread: int, min_warps: int = 4) -> RowBlock:
    """Choose a block of about `elements` elements for rows `width` wide, at most `per_thread` of them in a thread.

    >>> row_block(1000, elements=4096, per_thread=32)
    RowBlock(rows=4, block=1024, num_warps=4)
    """
    block = next_power_of_2(width)
    rows = max(1, elements // block)
    num_warps = min(MAX_WARPS, max(min_warps, rows * block // (32 * per_thread)))
    return RowBlock(rows, block, num_warps)


def next_power_of_2(n: int) -> int:
    """Round n up to a power of two, at least 1.

    >>> [next_power_of_2(n) for n in (0, 1, 5, 64)]
    [1, 1, 8, 64]
    """
    return 1 << max(0, n - 1).bit_length()


def rows_and_width(x: torch.Tensor, name: str = "x") -> tuple[int, int]:
    """Return N and D of a tensor (…, D). Raises InputError if it has no dimensions or D is 0."""
    if x.ndim == 0:
        raise InputError(f"{name} has no dimension to go along", got="shape ()", expected="(…, D)")
    width = x.shape[-1]
    if width == 0:
        raise InputError(
            f"rows of {name} have no elements", got=f"shape {tuple(x.shape)}", expected="(…, D), D at least 1"
        )
    return x.numel() // width, width
