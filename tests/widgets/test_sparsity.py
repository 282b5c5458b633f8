from __future__ import annotations

import itertools

import pytest

from mlsys_lab import hardware
from mlsys_lab.efficiency.pruning.costs import LAYOUTS, speedup
from mlsys_lab.errors import InputError
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.sparsity import SHAPE, Sparsity, sparsity_data, sparsity_table

NAME = "mlsys-sparsity"


def figure(device: str = "H100", **options) -> str:
    data = sparsity_data(device, **options)
    return element("sparsity", fallback=sparsity_table(data), **data)._repr_html_()


def test_the_figure_and_python_find_the_same_speedups(open_module) -> None:
    page, data = open_module("sparsity", "speedupOf"), sparsity_data()
    devices = {one["name"]: one for one in data["devices"]}
    layouts = {one["name"]: one for one in data["layouts"]}
    cases = [
        (device, name, density, tokens, precision)
        for device, precision in (("H100", "bf16"), ("B200", "fp8"), ("T4", "fp16"))
        for (name, layout), density, tokens in itertools.product(LAYOUTS.items(), (0.02, 0.3, 0.5, 1.0), (1, 128, 8192))
        if layout.density in (None, density)
    ]
    got = page.evaluate(
        """([cases, dense, shape]) => cases.map(([device, layout, density, tokens, precision, elementBytes]) =>
          speedupOf(device, dense, layout, { shape, density, tokens, precision, elementBytes }))""",
        [
            [
                (devices[d], layouts[n], density, tokens, p, data["element_bytes"][p])
                for d, n, density, tokens, p in cases
            ],
            layouts["dense"],
            SHAPE,
        ],
    )
    expected = [speedup(hardware.device(d), p, n, SHAPE, density, tokens) for d, n, density, tokens, p in cases]
    assert got == pytest.approx(expected, rel=1e-9) and len(cases) > 100


def test_the_table_has_the_break_even_of_each_layout() -> None:
    text = sparsity_table(sparsity_data())
    assert "<td>2:4</td><td>1.78 times faster</td>" in text
    assert "<td>bitmap</td><td>below 93.7 %</td>" in text or "<td>bitmap</td><td>below 93.8 %</td>" in text


def test_what_cannot_be_shown_is_one_line() -> None:
    with pytest.raises(InputError, match="tokens of a product: got 3, expected a power of two up to 8,192"):
        sparsity_data(tokens=3)
    with pytest.raises(InputError, match="fp32"):
        sparsity_data("TPU v5e")


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = Sparsity.of("B200", tokens=64, precision="fp8")
    assert (widget._esm, widget.device, widget.tokens) == (esm("sparsity"), "B200", 64)


def test_prefill_leaves_less_to_gain_than_decode(open_page) -> None:
    page = open_page(figure(tokens=1))
    verdict, gains = page.locator(f"{NAME} .verdict"), page.locator(f"{NAME} .gains")
    assert "bitmap, block 16, block 64 can be faster than dense" in verdict.inner_text()
    assert "1.78×, always 50 %" in gains.inner_text()
    page.get_by_role("slider", name="Tokens").focus()
    page.keyboard.press("End")
    assert "bitmap" not in verdict.inner_text() and "2×, always 50 %" in gains.inner_text()
    page.get_by_role("slider", name="Density").press("Home")
    assert verdict.inner_text().startswith("With 1 % of the weights, csr, block 16, block 64 can")


def test_a_device_without_the_precision_shows_one_that_it_has(open_page) -> None:
    page = open_page(figure("H100", precision="fp8"))
    page.get_by_label("Device").select_option("T4")
    assert page.get_by_label("Precision").input_value() == "fp16"


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_off(open_page, width) -> None:
    page = open_page(figure(), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
