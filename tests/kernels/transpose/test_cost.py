"""The least that a transpose takes."""

from __future__ import annotations

from mlsys_lab.kernels.transpose import cost


def test_each_element_there_and_back():
    assert (cost.least_bytes(3, 5), cost.least_bytes(3, 5, itemsize=2), cost.least_bytes(0, 5)) == (120, 60, 0)
