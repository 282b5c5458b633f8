"""FLOPs and minimum bytes of a sum."""

from __future__ import annotations

from mlsys_lab.validation import require_non_negative, require_positive


def flops(elements: int) -> int:
    """FLOPs of a sum: one addition less than there are numbers, 0 for none."""
    require_non_negative(elements=elements)
    return max(elements - 1, 0)


def min_bytes(elements: int, itemsize: int = 4) -> int:
    """Minimum bytes of a sum: every number read once, and the sum written."""
    require_non_negative(elements=elements)
    require_positive(itemsize=itemsize)
    return (elements + 1) * itemsize
