"""FLOPs and minimum bytes of x + y."""

from __future__ import annotations

from mlsys_lab.validation import require_non_negative, require_positive


def flops(elements: int) -> int:
    """FLOPs of x + y: one addition per element."""
    require_non_negative(elements=elements)
    return elements


def min_bytes(elements: int, itemsize: int = 4) -> int:
    """Minimum bytes of x + y: two arrays read and one written, each once."""
    require_non_negative(elements=elements)
    require_positive(itemsize=itemsize)
    return 3 * elements * itemsize
