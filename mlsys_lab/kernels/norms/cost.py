"""FLOPs and minimum bytes of layer norm and RMS norm over N rows of D elements, and of their backward passes.

Roots and divisions once per row are not counted, nor are μ and r, which are saved for the backward pass.
"""

from __future__ import annotations

from mlsys_lab.validation import require_positive


def forward(rows: int, width: int, itemsize: float, *, centred: bool) -> tuple[float, float]:
    """FLOPs and minimum bytes of the forward pass, `centred` for layer norm.

    RMS norm takes x², its sum and two products; layer norm also the sum of x, a difference and + b.

    x is read and y written; w and b are read once.

    >>> forward(8192, 8192, 2, centred=False)
    (268435456.0, 268451840.0)
    """
    require_positive(rows=rows, width=width, itemsize=itemsize)
    flops, weights = (7.0, 2) if centred else (4.0, 1)
    return flops * rows * width, (2.0 * rows + weights) * width * itemsize


def backward(rows: int, width: int, itemsize: float, *, centred: bool) -> tuple[float, float]:
    """FLOPs and minimum bytes of the backward pass, `centred` for layer norm.

    RMS norm takes x̂, g, g·x̂ and its sum, dy·x̂ and its sum, and three more for dx; layer norm 4 more: x − μ, Σg, one
    subtraction and db.

    x and dy are read and dx written; w is read, dw (and db) written.
    """
    require_positive(rows=rows, width=width, itemsize=itemsize)
    flops, weights = (13.0, 3) if centred else (9.0, 2)
    return flops * rows * width, (3.0 * rows + weights) * width * itemsize
