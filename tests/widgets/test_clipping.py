from __future__ import annotations

import numpy as np
import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.clipping import (
    BITS,
    Clipping,
    best_limit,
    clipping_data,
    clipping_error,
    clipping_table,
)

NAME = "mlsys-clipping"
WEIGHTS = np.random.default_rng(0).laplace(size=20_000)


def figure(bits: int = 3) -> str:
    data = clipping_data(WEIGHTS, bits=bits)
    return element("clipping", fallback=clipping_table(data), **data)._repr_html_()


def test_the_histogram_gives_the_error_of_the_weights_themselves() -> None:
    data, scaled = clipping_data(WEIGHTS), WEIGHTS / np.abs(WEIGHTS).max()
    for limit, bits in ((1.0, 4), (0.4, 4), (0.2, 3)):
        largest = 2 ** (bits - 1) - 1
        codes = np.clip(np.round(scaled / limit * largest), -largest, largest)
        error = np.mean((codes / largest * limit - scaled) ** 2)
        assert sum(clipping_error(data["centres"], data["counts"], limit, bits)) == pytest.approx(error, rel=0.05)


def test_the_figure_and_python_find_the_same_errors(open_module) -> None:
    page, data = open_module("clipping", "clippingError", "bestLimit"), clipping_data(WEIGHTS)
    cases = [(limit, bits) for limit in (0.07, 0.31, 0.8, 1.0) for bits in BITS]
    got = page.evaluate(
        "([centres, counts, cases]) => cases.map(([limit, bits]) => clippingError(centres, counts, limit, bits))",
        [data["centres"], data["counts"], cases],
    )
    for (limit, bits), errors in zip(cases, got, strict=True):
        expected = clipping_error(data["centres"], data["counts"], limit, bits)
        assert (errors["clipping"], errors["rounding"]) == pytest.approx(expected, rel=1e-9, abs=1e-15)
    best = page.evaluate(
        "([c, n, bits]) => bits.map((one) => bestLimit(c, n, one))", [data["centres"], data["counts"], [*BITS]]
    )
    assert best == pytest.approx([best_limit(data, bits) for bits in BITS])


def test_fewer_bits_ask_for_a_smaller_range() -> None:
    best = [best_limit(clipping_data(WEIGHTS), bits) for bits in BITS]
    assert best == sorted(best) and best[0] < 0.4 < best[-1]


def test_what_cannot_be_shown_is_one_line() -> None:
    with pytest.raises(InputError, match="weights to clip: got largest magnitude 0"):
        clipping_data([0.0, 0.0])
    with pytest.raises(InputError, match="weights to clip: got largest magnitude nan"):
        clipping_data([0.0, float("nan")])
    with pytest.raises(InputError, match="bits of a weight: got 9, expected 2 to 8"):
        clipping_data(WEIGHTS, bits=9)


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = Clipping.of(WEIGHTS, bits=3)
    assert (widget._esm, widget.bits, sum(widget.counts)) == (esm("clipping"), 3, len(WEIGHTS))


def test_the_keyboard_clips_and_a_button_finds_the_best_range(open_page) -> None:
    page, data = open_page(figure(bits=3)), clipping_data(WEIGHTS)
    whole, best = (
        100 * sum(clipping_error(data["centres"], data["counts"], limit, 3)) ** 0.5
        for limit in (1.0, best_limit(data, 3))
    )
    verdict = page.locator(f"{NAME} .verdict")
    assert verdict.inner_text() == f"Error {whole:.3g} %, with the whole range {whole:.3g} %"
    page.get_by_role("button", name="least error").press("Enter")
    assert verdict.inner_text() == f"Error {best:.3g} %, with the whole range {whole:.3g} %"
    clipped = page.locator(f"{NAME} svg .clipped").count()
    page.get_by_label("Range", exact=True).press("ArrowLeft")
    assert page.locator(f"{NAME} svg .clipped").count() > clipped > 0


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_off(open_page, width) -> None:
    page = open_page(figure(), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
