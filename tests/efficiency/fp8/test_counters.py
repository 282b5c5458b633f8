"""Counters of lost numbers, against a loop in Python."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.efficiency.formats import E4M3, E5M2
from mlsys_lab.efficiency.fp8 import BlockScaling
from mlsys_lab.efficiency.fp8.counters import Lost, count
from mlsys_lab.efficiency.fp8.scaling import DelayedScaling


@pytest.mark.parametrize("format", [E4M3, E5M2], ids=["e4m3", "e5m2"])
def test_underflow_and_saturation_are_counted(format):
    scaling = DelayedScaling(format)
    scaling(torch.ones(2, 2))
    exponents = torch.arange(-40, 10.0)
    x = torch.cat([2.0**exponents, -(2.0**exponents), torch.zeros(6)]).view(2, -1)
    cast = scaling(x).along_rows
    scale = 2.0**-8 if format is E4M3 else 2.0**-15  # 1 / 448 and 1 / 57344 rounded up
    half_smallest, largest = format.smallest_subnormal / 2 * scale, format.largest * scale
    small = sum(0 < abs(number) <= half_smallest for number in x.flatten().tolist())
    large = sum(abs(number) > largest for number in x.flatten().tolist())
    assert small and large
    assert count(x, cast, format) == Lost(100, small, large)
    assert Lost(100, small, large).underflow == small / 100 and Lost().underflow == Lost().saturation == 0


def test_scales_of_tiles_are_respected():
    x = torch.tensor([[1e-9, 1e-9, 1.0, 1e-9]])
    assert count(x, BlockScaling(E4M3, (1, 2))(x).along_rows, E4M3) == Lost(4, 1, 0)
