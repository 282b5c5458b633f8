"""What x + y costs at least."""

from __future__ import annotations

from mlsys_lab.flops.amounts import not_negative, positive


def flops(elements: int) -> int:
    """One addition an element."""
    not_negative(elements=elements)
    return elements


def least_bytes(elements: int, itemsize: int = 4) -> int:
    """Two arrays read, one written, each once."""
    not_negative(elements=elements)
    positive(itemsize=itemsize)
    return 3 * elements * itemsize
