"""The least that brightness takes."""

from __future__ import annotations

from mlsys_lab.kernels.grey import cost


def test_five_operations_and_four_numbers_a_pixel():
    assert (cost.flops(10), cost.min_bytes(10), cost.min_bytes(10, itemsize=8)) == (50, 160, 320)
