"""FLOPs and bytes of softmax, counted by hand."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.softmax import cost


def test_two_rows_of_three() -> None:
    assert cost.forward(2, 3, 4) == (30, 48) and cost.backward(2, 3, 4) == (24, 72)
    # x for the maximum; x and it; the difference; the exponential; that and its sum. All but two results are matrices.
    assert cost.unfused(2, 3, 4) == (4 * (6 + (6 + 2) + 6 + 6 + (6 + 2)), 4 * (2 + 6 + 6 + 2 + 6))


def test_amounts_that_cannot_be() -> None:
    with pytest.raises(InputError, match="width must be positive"):
        cost.forward(2, 0, 4)
    with pytest.raises(InputError, match="rows must be positive"):
        cost.unfused(0, 3, 4)
