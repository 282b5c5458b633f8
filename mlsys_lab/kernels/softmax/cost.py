"""FLOPs and minimum bytes of a softmax over N rows of D elements, fused and not, and of its backward pass."""

from __future__ import annotations

from mlsys_lab.validation import require_positive


def forward(rows: int, width: int, itemsize: float) -> tuple[float, float]:
    """FLOPs and minimum bytes of the forward pass: 5 FLOPs per element; x read once, y written once.

    An exponential counts as one FLOP.

    >>> forward(8192, 1024, 2)
    (41943040.0, 33554432.0)
    """
    require_positive(rows=rows, width=width, itemsize=itemsize)
    return 5.0 * rows * width, 2.0 * rows * width * itemsize


def unfused(rows: int, width: int, itemsize: float) -> tuple[float, float]:
    """Bytes read and written where maximum, difference, exponential, sum and quotient are each a pass over memory.

    >>> unfused(4096, 1024, 4)
    (83918848.0, 50364416.0)
    """
    require_positive(rows=rows, width=width, itemsize=itemsize)
    return (5.0 * width + 2) * rows * itemsize, (3.0 * width + 2) * rows * itemsize


def backward(rows: int, width: int, itemsize: float) -> tuple[float, float]:
    """FLOPs and minimum bytes of the backward pass: 4 FLOPs per element; y and dy read once, dx written once."""
    require_positive(rows=rows, width=width, itemsize=itemsize)
    return 4.0 * rows * width, 3.0 * rows * width * itemsize
