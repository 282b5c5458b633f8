"""What brightness costs at least."""

from __future__ import annotations

from mlsys_lab.flops.amounts import not_negative, positive


def flops(pixels: int) -> int:
    """Three multiplications and two additions a pixel."""
    not_negative(pixels=pixels)
    return 5 * pixels


def least_bytes(pixels: int, itemsize: int = 4) -> int:
    """Three numbers read and one written a pixel."""
    not_negative(pixels=pixels)
    positive(itemsize=itemsize)
    return 4 * pixels * itemsize
