"""FLOPs and bytes of softmax, counted by hand."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.softmax import cost


def test_two_rows_of_three() -> None:
    assert cost.forward(2, 3, 4) == (30, 48) and cost.backward(2, 3, 4) == (24, 72)


def test_amounts_that_cannot_be() -> None:
    with pytest.raises(InputError, match="width must be positive"):
        cost.forward(2, 0, 4)
