"""Least bytes of a transpose, which computes nothing."""

from __future__ import annotations

from mlsys_lab.flops.amounts import not_negative, positive


def least_bytes(rows: int, columns: int, itemsize: int = 4) -> int:
    """Least bytes of a transpose: every element read once and written once."""
    not_negative(rows=rows, columns=columns)
    positive(itemsize=itemsize)
    return 2 * rows * columns * itemsize
