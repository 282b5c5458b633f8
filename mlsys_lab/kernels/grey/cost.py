"""FLOPs and minimum bytes of computing a picture's brightness."""

from __future__ import annotations

from mlsys_lab.validation import require_non_negative, require_positive


def flops(pixels: int) -> int:
    """FLOPs of the brightness of `pixels` pixels: three multiplications and two additions each."""
    require_non_negative(pixels=pixels)
    return 5 * pixels


def min_bytes(pixels: int, itemsize: int = 4) -> int:
    """Minimum bytes moved for `pixels` pixels: three numbers read and one written each."""
    require_non_negative(pixels=pixels)
    require_positive(itemsize=itemsize)
    return 4 * pixels * itemsize
