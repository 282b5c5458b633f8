from __future__ import annotations

import itertools
import re

import pytest
import torch

from mlsys_lab.efficiency.formats import round_to
from mlsys_lab.errors import InputError
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.number_line import FORMATS, NumberLine, number_line_data, number_line_table, values_of

NAME = "mlsys-number_line"


def figure(*shown: str, number: float = 0.3) -> str:
    data = number_line_data(shown, number=number)
    return element("number_line", fallback=number_line_table(data), **data)._repr_html_()


def test_the_figure_rounds_as_the_package_does_ties_included(open_module) -> None:
    page = open_module("number_line", "roundTo")
    for name, format in FORMATS.items():
        numbers = sorted({value * format.largest for value in values_of(format)})
        exact = [min(map(format.value, range(2**format.bits)), key=lambda one: abs(one - x)) for x in numbers]
        middles = [(low + high) / 2 for low, high in itertools.pairwise(exact)] if name != "nf4" else []
        wanted = torch.tensor([*middles, *torch.linspace(-1, 1, 501).mul(format.largest).tolist()], dtype=torch.float64)
        got = page.evaluate(
            "([values, numbers]) => numbers.map((x) => roundTo(values, x))",
            [values_of(format), (wanted / format.largest).tolist()],
        )
        expected = round_to(wanted, format).double() / format.largest
        torch.testing.assert_close(torch.tensor(got, dtype=torch.float64), expected, rtol=0, atol=1e-6, msg=name)


def test_the_table_lists_the_numbers_of_few_bits() -> None:
    text = number_line_table(number_line_data())
    assert "<td>fp4 e2m1</td><td>15</td><td>0, 0.0833, 0.167, 0.25, 0.333, 0.5, 0.667, 1</td>" in text
    assert "<td>int8</td><td>255</td><td></td>" in text


def test_what_cannot_be_shown_is_one_line() -> None:
    with pytest.raises(InputError, match=r"no such format: got 'fp4', expected one of int3.*did you mean"):
        number_line_data(["fp4"])
    with pytest.raises(InputError, match="number out of range: got 2, expected -1 to 1"):
        number_line_data(number=2)


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = NumberLine.of(["int4"], number=-0.5)
    assert (widget._esm, widget.shown, widget.number) == (esm("number_line"), ["int4"], -0.5)


def test_the_keyboard_moves_the_number_and_chooses_formats(open_page) -> None:
    page = open_page(figure("fp4 e2m1", number=0.3))
    verdict = page.locator(f"{NAME} .verdict")
    assert verdict.inner_text() == "0.3 is rounded to 0.333 in fp4 e2m1"
    page.get_by_label("int4").press("Space")
    assert verdict.inner_text() == "0.3 is rounded to 0.286 in int4, 0.333 in fp4 e2m1"
    page.get_by_label("Number", exact=True).focus()
    page.keyboard.press("End")
    assert verdict.inner_text() == "1 is rounded to 1 in int4, 1 in fp4 e2m1"


def test_zooming_leaves_the_small_numbers(open_page) -> None:
    page = open_page(figure("int4", "fp8 e4m3"))
    label = page.locator(f"{NAME} svg text")
    assert "15 of 15 numbers" in label.all_text_contents()
    page.get_by_label("Zoom").focus()
    page.keyboard.press("End")
    shown = label.all_text_contents()
    assert "1 of 15 numbers" in shown
    of_floats = next(text for text in shown if text.endswith("of 253 numbers"))
    assert int(re.match(r"\d+", of_floats).group()) > 50


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_off(open_page, width) -> None:
    page = open_page(figure(*FORMATS), width=width)
    box = page.locator(NAME).bounding_box()
    for text in page.locator(f"{NAME} svg text").all():
        inner = text.bounding_box()
        assert box["x"] <= inner["x"] and inner["x"] + inner["width"] <= box["x"] + box["width"] <= width
