"""What a transpose costs at least."""

from __future__ import annotations

from mlsys_lab.flops.amounts import not_negative, positive


def least_bytes(rows: int, columns: int, itemsize: int = 4) -> int:
    """Every element read once and written once; no arithmetic at all."""
    not_negative(rows=rows, columns=columns)
    positive(itemsize=itemsize)
    return 2 * rows * columns * itemsize
