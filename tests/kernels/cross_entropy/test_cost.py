"""FLOPs and bytes of cross-entropy, counted by hand."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.cross_entropy import cost


def test_two_rows_of_three() -> None:
    assert cost.forward(2, 3, 2) == (24, 2 * (6 + 8 + 4 + 4))  # logits, target, loss, log Σ exp
    assert cost.backward(2, 3, 2) == (24, 2 * (6 + 6 + 8 + 4 + 4))  # and the gradients of logits and losses
    assert cost.in_place(2, 3, 2) == (48, 2 * (6 + 6 + 8 + 4))


def test_amounts_that_cannot_be() -> None:
    with pytest.raises(InputError, match="vocabulary must be positive"):
        cost.in_place(2, -1, 2)
