"""FLOPs and minimum bytes of cross-entropy over N rows of V logits, forward and backward."""

from __future__ import annotations

from mlsys_lab.validation import require_positive

TARGET_BYTES = 8
"""Bytes of a target, an int64."""

ROW_BYTES = 4
"""Bytes of each number stored per row, a float32."""


def forward(rows: int, vocabulary: int, itemsize: float) -> tuple[float, float]:
    """FLOPs and minimum bytes of the forward pass: 4 FLOPs per logit, of which the exponential counts as one.

    Logits and targets are read once; a loss and log Σ exp are written for each row.

    >>> forward(1, 1000, 2)
    (4000.0, 2016.0)
    """
    require_positive(rows=rows, vocabulary=vocabulary, itemsize=itemsize)
    return 4.0 * rows * vocabulary, float(rows) * (vocabulary * itemsize + TARGET_BYTES + 2 * ROW_BYTES)


def backward(rows: int, vocabulary: int, itemsize: float) -> tuple[float, float]:
    """FLOPs and minimum bytes of the backward pass: 4 FLOPs per logit; logits read once, gradient written once.

    Read for each row: target, log Σ exp and the gradient of its loss.
    """
    require_positive(rows=rows, vocabulary=vocabulary, itemsize=itemsize)
    return 4.0 * rows * vocabulary, float(rows) * (2 * vocabulary * itemsize + TARGET_BYTES + 2 * ROW_BYTES)


def in_place(rows: int, vocabulary: int, itemsize: float) -> tuple[float, float]:
    """FLOPs and minimum bytes of forward and backward pass in one kernel.

    The logits are needed twice; the minimum counts them once, as if a row stayed on the chip.
    """
    require_positive(rows=rows, vocabulary=vocabulary, itemsize=itemsize)
    return 8.0 * rows * vocabulary, float(rows) * (2 * vocabulary * itemsize + TARGET_BYTES + ROW_BYTES)
