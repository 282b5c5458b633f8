"""Peaks from units and clock, and back."""

from __future__ import annotations

import pytest

from mlsys_lab.flops.peaks import implied_clock_hz, implied_multiply_adds, peak_flops_per_s


def test_one_relation_is_solved_for_each_of_its_parts() -> None:
    units, multiply_adds, clock_hz = 108, 1024, 1.41e9  # an A100's tensor cores, by multiprocessor
    peak = peak_flops_per_s(units, multiply_adds, clock_hz)
    assert peak == 2 * 108 * 1024 * 1.41e9
    assert implied_multiply_adds(peak, units, clock_hz) == pytest.approx(multiply_adds, rel=1e-12)
    assert implied_clock_hz(peak, units, multiply_adds) == pytest.approx(clock_hz, rel=1e-12)
