"""Axes of drawings: values lie in proportion, or by their logarithms, and the numbers stand at their ticks."""

from __future__ import annotations

import pytest

from book.drawings.axes import Axes, Scale, power_of_ten


def test_a_scale_goes_from_its_lowest_to_its_highest_value() -> None:
    assert [Scale(2, 4, 100, 0)(value) for value in (2, 3, 4)] == [100, 50, 0]
    assert [Scale(1, 100, 0, 10, log=True)(value) for value in (1, 10, 100)] == pytest.approx([0, 5, 10])


def test_a_frame_has_two_lines_and_a_tick_with_its_number_at_each_value() -> None:
    axes = Axes(Scale(1, 1e4, 40, 240, log=True), Scale(0, 2, 100, 0))
    assert axes.at(100, 1) == (140, 50)
    drawn = "".join(axes.frame((10, 1000), (1,), label_x="tokens", label_y="loss"))
    assert drawn.count("<text") == 5 and all(f">{label}<" in drawn for label in ("10¹", "10³", "1", "tokens", "loss"))


def test_powers_of_ten() -> None:
    assert [power_of_ten(number) for number in (1.0, 10.0, 1e12)] == ["10⁰", "10¹", "10¹²"]
