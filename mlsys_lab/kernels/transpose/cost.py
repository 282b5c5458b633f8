"""Minimum bytes of a transpose, which has no FLOPs."""

from __future__ import annotations

from mlsys_lab.validation import require_non_negative, require_positive


def min_bytes(rows: int, columns: int, itemsize: int = 4) -> int:
    """Minimum bytes of a transpose: every element read once and written once."""
    require_non_negative(rows=rows, columns=columns)
    require_positive(itemsize=itemsize)
    return 2 * rows * columns * itemsize
