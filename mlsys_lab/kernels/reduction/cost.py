"""What a sum costs at least."""

from __future__ import annotations

from mlsys_lab.flops.amounts import not_negative, positive


def flops(elements: int) -> int:
    """One addition less than there are numbers."""
    not_negative(elements=elements)
    return max(elements - 1, 0)


def least_bytes(elements: int, itemsize: int = 4) -> int:
    """Every number read once, and the sum written."""
    not_negative(elements=elements)
    positive(itemsize=itemsize)
    return (elements + 1) * itemsize
