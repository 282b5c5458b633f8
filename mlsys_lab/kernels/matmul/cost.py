"""FLOPs and bytes of a·b: the minimum, and what a step requests from global memory by tile size."""

from __future__ import annotations

import math

from mlsys_lab.flops import roofline
from mlsys_lab.validation import require_non_negative, require_positive


def flops(m: int, n: int, k: int) -> int:
    """FLOPs of (m, k)·(k, n): a multiply-add for each element of c and step along k, 2·m·n·k."""
    require_non_negative(m=m, n=n, k=k)
    return 2 * m * n * k


def min_bytes(m: int, n: int, k: int, itemsize: int = 4) -> int:
    """Minimum bytes of (m, k)·(k, n): each of the three matrices moved once."""
    require_non_negative(m=m, n=n, k=k)
    require_positive(itemsize=itemsize)
    return int(roofline.matmul_work(m, n, k, itemsize)[1])


def tiled_bytes(m: int, n: int, k: int, rows: int, columns: int, itemsize: int = 4) -> int:
    """Bytes requested from global memory if a block computes `rows` × `columns` elements of c.

    A block loads each number once. Every column of blocks loads all of a, every row of blocks all of b, and c is stored
    once. A thread that computes one element by itself is a block of 1 × 1.
    """
    require_non_negative(m=m, n=n, k=k)
    require_positive(rows=rows, columns=columns, itemsize=itemsize)
    return (m * k * math.ceil(n / columns) + k * n * math.ceil(m / rows) + m * n) * itemsize
