"""FLOPs and bytes of a·b: the least, and what a step reads from global memory by the size of its tiles."""

from __future__ import annotations

import math

from mlsys_lab.flops import roofline
from mlsys_lab.validation import require_non_negative, require_positive


def flops(m: int, n: int, k: int) -> int:
    """FLOPs of (m, k)·(k, n): a multiplication and an addition for each element of c and step along k, 2·m·n·k."""
    require_non_negative(m=m, n=n, k=k)
    return 2 * m * n * k


def least_bytes(m: int, n: int, k: int, itemsize: int = 4) -> int:
    """Least bytes of (m, k)·(k, n): each of the three matrices moved once."""
    require_non_negative(m=m, n=n, k=k)
    require_positive(itemsize=itemsize)
    return int(roofline.matmul(m, n, k, itemsize)[1])


def tiled_bytes(m: int, n: int, k: int, rows: int, columns: int, itemsize: int = 4) -> int:
    """Bytes asked of global memory where a block makes `rows` × `columns` elements of c and reads each number once.

    Every column of blocks reads all of a, every row of blocks all of b, and c is written once. A thread that makes one
    element by itself is a block of 1 × 1.
    """
    require_non_negative(m=m, n=n, k=k)
    require_positive(rows=rows, columns=columns, itemsize=itemsize)
    return (m * k * math.ceil(n / columns) + k * n * math.ceil(m / rows) + m * n) * itemsize
