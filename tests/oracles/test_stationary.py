"""Activations that travel past weights which stay, in one torus of three axes and by brute force."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from tests.oracles.stationary import critical_devices, one_side_bytes, two_sides_bytes


def test_one_side_by_hand():
    assert one_side_bytes(5, 12, axes=3) == 5 * 12 * 2 * 2 / 3
    assert one_side_bytes(5, 12, axes=1, element_bytes=1) == 5 * 12 * 2


@pytest.mark.parametrize(("axes", "devices"), [((1, 2), 64), ((1, 1), 100), ((2, 1), 7)])
def test_the_best_of_all_divisions(axes, devices):
    def sent(x):
        along_d, along_f = x, devices / x
        return 2 * 2 * 9 * (256 / along_d / axes[1] + 1024 / along_f / axes[0])

    best = min(sent(x / 1000) for x in range(100, 100_000))
    assert two_sides_bytes(9, 256, 1024, devices, axes=axes) == pytest.approx(best, rel=1e-6)


def test_where_the_two_meet():
    n = critical_devices(512, 1024)
    assert two_sides_bytes(3, 512, 1024, n) == pytest.approx(one_side_bytes(3, 512))
    assert two_sides_bytes(3, 512, 1024, 2 * n) < one_side_bytes(3, 512)


def test_bad_input():
    with pytest.raises(InputError, match="devices must be at least 1: got 0"):
        two_sides_bytes(1, 4, 4, 0)
    with pytest.raises(InputError, match="tokens must be positive: got 0"):
        one_side_bytes(0, 4)
