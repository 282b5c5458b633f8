"""The least that a transpose takes."""

from __future__ import annotations

from mlsys_lab.kernels.transpose import cost


def test_each_element_there_and_back():
    assert (cost.min_bytes(3, 5), cost.min_bytes(3, 5, itemsize=2), cost.min_bytes(0, 5)) == (120, 60, 0)
