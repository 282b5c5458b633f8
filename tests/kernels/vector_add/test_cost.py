"""The least that x + y takes."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.vector_add import cost


def test_an_addition_and_twelve_bytes_an_element():
    assert (cost.flops(10), cost.min_bytes(10), cost.min_bytes(10, itemsize=2)) == (10, 120, 60)
    assert (cost.flops(0), cost.min_bytes(0)) == (0, 0)
    with pytest.raises(InputError, match="elements must not be negative: got -1"):
        cost.min_bytes(-1)
