"""Runs and curves of the figure of loss against parameters."""

from __future__ import annotations

import numpy as np
import pytest

from mlsys_lab.scaling import BESIROGLU_2024
from mlsys_lab.widgets.profiles import plot_profiles

FLOPS = np.repeat([1e18, 4e18], 5)
SIZES = np.tile(np.geomspace(1e8, 1e9, 5), 2)
LOSS = BESIROGLU_2024.loss(SIZES, FLOPS / (6 * SIZES))


@pytest.mark.parametrize("order", [slice(None), np.random.default_rng(0).permutation(10)])
def test_points_are_the_runs_that_came_back_and_the_law_goes_through_them(order: slice | np.ndarray) -> None:
    lost = LOSS.copy()
    lost[3] = np.nan
    figure = plot_profiles(FLOPS[order], SIZES[order], lost[order], law=BESIROGLU_2024.loss, title="runs")
    points, curves = figure.data[::2], figure.data[1::2]
    assert [len(one.x) for one in points] == [4, 5]
    assert [one.name for one in points] == ["1.0e+18 FLOPs", "4.0e+18 FLOPs"]
    for one, curve, flops in zip(points, curves, (1e18, 4e18), strict=True):
        assert one.marker.color == curve.marker.color
        np.testing.assert_allclose(one.y, BESIROGLU_2024.loss(one.x, flops / (6 * one.x)))
        np.testing.assert_allclose(curve.y, BESIROGLU_2024.loss(curve.x, flops / (6 * curve.x)))
        assert (curve.x.min(), curve.x.max()) == pytest.approx((one.x.min(), one.x.max()))


def test_without_a_law_the_curve_is_the_parabola_through_the_runs() -> None:
    loss = 3 + 0.1 * np.log(SIZES / 3e8) ** 2
    _, curve, *_ = plot_profiles(FLOPS, SIZES, loss, title="runs").data
    np.testing.assert_allclose(curve.y, 3 + 0.1 * np.log(curve.x / 3e8) ** 2)
