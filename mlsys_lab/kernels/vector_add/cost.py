"""FLOPs and least bytes of x + y."""

from __future__ import annotations

from mlsys_lab.flops.amounts import not_negative, positive


def flops(elements: int) -> int:
    """FLOPs of x + y: one addition an element."""
    not_negative(elements=elements)
    return elements


def least_bytes(elements: int, itemsize: int = 4) -> int:
    """Least bytes of x + y: two arrays read and one written, each once."""
    not_negative(elements=elements)
    positive(itemsize=itemsize)
    return 3 * elements * itemsize
