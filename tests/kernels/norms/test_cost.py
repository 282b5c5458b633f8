"""FLOPs and bytes of the norms, counted by hand."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.norms import cost


def test_two_rows_of_three() -> None:
    assert cost.forward(2, 3, 4, centred=False) == (24, 4 * (6 + 6 + 3))  # x, y, w
    assert cost.forward(2, 3, 4, centred=True) == (42, 4 * (6 + 6 + 3 + 3))  # and b
    assert cost.backward(2, 3, 4, centred=False) == (54, 4 * (6 + 6 + 6 + 3 + 3))  # x, dy, dx, w, dw
    assert cost.backward(2, 3, 4, centred=True) == (78, 4 * (6 + 6 + 6 + 3 + 3 + 3))  # and db


def test_amounts_that_cannot_be() -> None:
    with pytest.raises(InputError, match="rows must be positive"):
        cost.backward(0, 3, 4, centred=True)
