"""FLOPs and bytes of a·b."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.matmul import cost


def test_two_operations_for_each_multiply_add_and_each_matrix_once():
    assert (cost.flops(2, 3, 4), cost.min_bytes(2, 3, 4), cost.min_bytes(2, 3, 4, itemsize=2)) == (48, 104, 52)
    assert (cost.flops(2, 3, 0), cost.min_bytes(2, 3, 0)) == (0, 24)


def test_a_block_as_large_as_c_reads_the_least_and_one_of_an_element_the_most():
    assert cost.tiled_bytes(2, 3, 4, 2, 3) == cost.tiled_bytes(2, 3, 4, 100, 100) == cost.min_bytes(2, 3, 4)
    assert cost.tiled_bytes(2, 3, 4, 1, 1) == 4 * (2 * 2 * 3 * 4 + 2 * 3)
    assert cost.tiled_bytes(5, 5, 1, 2, 3) == 4 * (5 * 2 + 5 * 3 + 25)


def test_amounts_that_cannot_be():
    with pytest.raises(InputError, match="k must not be negative: got -1"):
        cost.flops(1, 1, -1)
    with pytest.raises(InputError, match="rows must be positive: got 0"):
        cost.tiled_bytes(1, 1, 1, 0, 1)
