from __future__ import annotations

import math
import random
import re

import pytest

from mlsys_lab import hardware
from mlsys_lab.flops.roofline import bound, matmul_work
from mlsys_lab.widgets import Roofline, device_data, element, esm
from tests.pages import read_letter_sizes, settle

DEVICES = [
    {"name": "Big", "bandwidth": 2e12, "peaks": {"bf16": 800e12, "fp32": 50e12}},
    {"name": "Small", "bandwidth": 100e9, "peaks": {"fp32": 4e12}},
]


def roofline(**state) -> str:
    defaults = {
        "device": "Big",
        "precision": "bf16",
        "work": "matmul",
        "m": 64,
        "n": 4096,
        "k": 4096,
        "intensity": 16.0,
    }
    return element("roofline", devices=DEVICES, **(defaults | state))._repr_html_()


def test_a_matrix_multiply_by_hand() -> None:
    flops, size_bytes = matmul_work(2, 3, 5, 4)
    assert (flops, size_bytes) == (60.0, (10 + 15 + 6) * 4)
    assert bound(60.0, 120.0, peak_flops_per_s=10.0, bandwidth_bytes_per_s=40.0).limit == "compute"
    slow = bound(60.0, 120.0, peak_flops_per_s=100.0, bandwidth_bytes_per_s=40.0)
    assert (slow.limit, slow.intensity, slow.ridge, slow.time_s, slow.flops_per_s, slow.fraction) == (
        "memory", 0.5, 2.5, 3.0, 20.0, 0.2,
    )  # fmt: skip


def test_devices_of_the_table_can_all_be_drawn() -> None:
    data = {one["name"]: one for one in device_data()}
    assert len(data) == len(hardware.DEVICES) > 10
    h100 = hardware.device("H100")
    shown = {precision: peak for precision, peak in h100.peaks.items() if precision != "fp64"}
    assert data["H100"] == {"name": "H100", "bandwidth": h100.memory_bandwidth_bytes_per_s, "peaks": shown}
    assert Roofline().devices == device_data()
    # The figure needs the width of every precision, and has it in JavaScript.
    assert set(hardware.PRECISIONS) <= set(
        re.findall(r"(\w+): [\d.]+[,}]", re.search("FORMAT_BYTES = (.*);", esm("roofline"))[1] + ",")
    )


def test_the_figure_and_python_compute_the_same_bound(open_module) -> None:
    rng = random.Random(3)
    page = open_module("roofline", "matmul", "bound")
    for _ in range(200):
        m, n, k = (rng.choice([1, 3, 17, 640, 4096, 16384]) for _ in range(3))
        element_bytes, peak, bandwidth = rng.choice([0.5, 1, 2, 4]), rng.uniform(1e11, 2e15), rng.uniform(1e10, 8e12)
        got = page.evaluate(
            "([m, n, k, e, p, b]) => bound(matmul(m, n, k, e), p, b)", [m, n, k, element_bytes, peak, bandwidth]
        )
        expected = bound(*matmul_work(m, n, k, element_bytes), peak_flops_per_s=peak, bandwidth_bytes_per_s=bandwidth)
        assert got.pop("limit") == expected.limit
        assert list(got.values()) == pytest.approx(
            [expected.intensity, expected.ridge, expected.time_s, expected.flops_per_s, expected.fraction], rel=1e-12
        )


def test_the_verdict_follows_the_keyboard(open_page) -> None:
    page = open_page(roofline(m=64))
    expected = bound(*matmul_work(64, 4096, 4096, 2), peak_flops_per_s=800e12, bandwidth_bytes_per_s=2e12)
    verdict = page.locator("mlsys-roofline .verdict")
    assert verdict.inner_text() == f"memory-bound: {100 * expected.fraction:.2g} % of peak"
    before = page.locator("mlsys-roofline circle.dot").get_attribute("cx")
    page.get_by_label("rows m").focus()
    page.keyboard.press("End")
    assert verdict.inner_text() == "compute-bound: 100 % of peak"
    after = page.locator("mlsys-roofline circle.dot").get_attribute("cx")
    assert float(after) > float(before) + 50
    assert page.get_by_label("rows m").get_attribute("aria-valuetext") == "16384"


def test_another_device_offers_its_own_precisions(open_page) -> None:
    page = open_page(roofline())
    page.get_by_label("Device").select_option("Small")
    assert page.get_by_label("Precision").locator("option").all_inner_texts() == ["fp32"]
    expected = bound(*matmul_work(64, 4096, 4096, 4), peak_flops_per_s=4e12, bandwidth_bytes_per_s=100e9)
    assert (
        page.locator("mlsys-roofline .verdict").inner_text() == f"memory-bound: {100 * expected.fraction:.2g} % of peak"
    )
    assert "Small, fp32: 100 GB/s up to 40 FLOP/B, then 4 TFLOP/s" in page.locator(
        "mlsys-roofline svg[role=img]"
    ).get_attribute("aria-label")


def test_a_point_on_the_roof_does_not_cover_the_roof_s_name(open_page) -> None:
    page = open_page(roofline(work="intensity", intensity=9000.0))
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function("document.querySelector('mlsys-roofline').shadowRoot.querySelector('svg').clientWidth < 390")
    settle(page)
    name, dot = page.evaluate(
        """() => {
          const root = document.querySelector("mlsys-roofline").shadowRoot;
          const name = [...root.querySelectorAll("svg text")].find((text) => text.textContent.endsWith("TFLOP/s"));
          const number = (node, what) => Number(node.getAttribute(what));
          const dot = root.querySelector("circle.dot");
          return [
            { right: number(name, "x"), width: name.getComputedTextLength(), baseline: number(name, "y") },
            { x: number(dot, "cx"), top: number(dot, "cy") - number(dot, "r") },
          ];
        }"""
    )
    assert name["right"] - name["width"] < dot["x"] < name["right"]
    assert name["baseline"] + 3 <= dot["top"]  # a slash reaches below the line


def test_intensity_moves_the_point_along_the_roof(open_page) -> None:
    page = open_page(roofline(work="intensity", intensity=400.0))
    assert page.locator("mlsys-roofline .verdict").inner_text() == "compute-bound: 100 % of peak"
    page.get_by_label("FLOP per byte").focus()
    for _ in range(8):
        page.keyboard.press("ArrowLeft")
    text = page.locator("mlsys-roofline .verdict").inner_text()
    # The slider moves in eighths of a doubling from where the browser rounded 400 to.
    assert text == f"memory-bound: {100 * 2 ** (round(math.log2(400) * 8) / 8 - 1) / 400:.2g} % of peak"


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_with_letters_of_a_readable_size(open_page, width: int) -> None:
    page = open_page(roofline(), width=width)
    sizes = read_letter_sizes(page, "mlsys-roofline")
    assert len(sizes) > 12 and min(sizes) >= 11
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_device_without_the_precision_takes_the_one_that_models_are_computed_in(open_page) -> None:
    kinds = [{"fp64": 1e12, "fp32": 2e12, "fp16": 9e12}, {"fp64": 1e12, "fp32": 2e12}, {"int8": 3e12}]
    devices = [{"name": f"Old {i}", "bandwidth": 1e11, "peaks": peaks} for i, peaks in enumerate(kinds)]
    page = open_page(
        element(
            "roofline", devices=devices, device="Old 0", precision="bf16", work="matmul", m=8, n=8, k=8
        )._repr_html_()
    )
    for name, precision in (("Old 0", "fp16"), ("Old 1", "fp32"), ("Old 2", "int8")):
        page.get_by_label("Device").select_option(name)
        assert page.get_by_label("Precision").input_value() == precision
