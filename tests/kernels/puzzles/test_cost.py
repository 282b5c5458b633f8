"""Operations and bytes of the puzzles."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.puzzles import PUZZLES, cost


@pytest.mark.parametrize(
    "name, shapes, flops, least_bytes",
    [
        ("map", [(10,)], 20, 80),
        ("zip", [(10,), (10,)], 20, 120),
        ("guard", [(10,)], 10, 80),
        ("map_2d", [(2, 5)], 10, 80),
        ("broadcast", [(5,), (2,)], 10, 68),
        ("blocks", [(10,)], 20, 80),
        ("shared", [(10,)], 0, 80),
        ("pooling", [(10,)], 20, 80),
        ("dot", [(10,), (10,)], 19, 84),
        ("convolution", [(10,), (3,)], 40, 84),
        ("axis_sum", [(2, 5)], 8, 48),
    ],
)
def test_each(name, shapes, flops, least_bytes):
    assert (cost.flops(name, *shapes), cost.min_bytes(name, *shapes)) == (flops, least_bytes)


def test_nothing_costs_nothing():
    assert cost.flops("dot", (0,), (0,)) == 0 and cost.flops("axis_sum", (3, 0)) == 0
    assert cost.min_bytes("map", (0,)) == 0
    with pytest.raises(InputError, match="unknown puzzle"):
        cost.flops("sudoku")
    assert {name for name in PUZZLES if name not in cost.OPERATIONS} == {"dot", "convolution", "axis_sum"}
