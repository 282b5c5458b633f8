"""The least that a sum takes."""

from __future__ import annotations

from mlsys_lab.kernels.reduction import cost


def test_an_addition_less_than_numbers_and_each_read_once():
    assert (cost.flops(10), cost.flops(1), cost.flops(0)) == (9, 0, 0)
    assert (cost.min_bytes(10), cost.min_bytes(0), cost.min_bytes(10, itemsize=2)) == (44, 4, 22)
