from __future__ import annotations

import json
import random
import re

import pytest

from mlsys_lab.comm.cost.selection import select_algorithm
from mlsys_lab.errors import InputError
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.all_reduce import TOPOLOGIES, AllReduce, all_reduce_data, all_reduce_table
from tests.pages import assert_readable

NAME = "mlsys-all_reduce"


def figure(topology_name: str = "NVLink island", **options) -> str:
    data = all_reduce_data(topology_name, **options)
    return element("all_reduce", fallback=all_reduce_table(data), **data)._repr_html_()


def algorithms_of(data, topology_name: str, ranks: int):
    sizes = next(one["sizes"] for one in data["topologies"] if one["name"] == topology_name)
    return next(one["algorithms"] for one in sizes if one["ranks"] == ranks)


def test_two_numbers_per_algorithm_give_the_model_s_predictions() -> None:
    rng, data = random.Random(9), all_reduce_data()
    for name, (build, counts) in TOPOLOGIES.items():
        for ranks in counts:
            size = 2 ** rng.uniform(8, 33)
            lines = {one["name"]: one for one in algorithms_of(data, name, ranks)}
            predictions = select_algorithm(size, build(ranks)).predictions
            assert lines.keys() == {one.algorithm for one in predictions}
            for one in predictions:
                line = lines[one.algorithm]
                assert line["latency_s"] + line["s_per_byte"] * size == pytest.approx(one.time_s, rel=1e-9)
                assert line["steps"] == one.steps


def test_the_table_names_the_fastest_algorithm() -> None:
    data = all_reduce_data()
    best = select_algorithm(2**20, TOPOLOGIES["PCIe tree"][0](8)).predictions[0]
    row = next(row for row in all_reduce_table(data).split("<tr>") if row.startswith("<td>PCIe tree</td><td>8</td>"))
    assert f"<td>{best.algorithm}, {1e6 * best.time_s:.3g} µs</td>" in row


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topology_name": "NVLink islands"}, "no such topology: got 'NVLink islands'"),
        ({"ranks": 7}, "no NVLink island of this size: got 7"),
        ({"size_bytes": 100}, "size out of range: got 100 bytes"),
    ],
)
def test_invalid_data_is_reported_in_one_line(options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        all_reduce_data(**options)


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = AllReduce.of("PCIe tree", ranks=4)
    assert widget._esm == esm("all_reduce")
    assert (widget.topology, widget.ranks, widget.algorithm) == ("PCIe tree", 4, "ring")
    site = re.search(r'application/json">(.*?)</script>', figure())
    assert site and json.loads(site.group(1))["topologies"] == widget.topologies


def test_the_fastest_by_size_is_the_model_s_choice(open_module) -> None:
    rng, data = random.Random(5), all_reduce_data()
    page = open_module("all_reduce", "fastestBySize")
    for name, (build, counts) in TOPOLOGIES.items():
        for ranks in counts:
            got = page.evaluate("(algorithms) => fastestBySize(algorithms)", algorithms_of(data, name, ranks))
            for size in (2 ** rng.uniform(8, 33) for _ in range(6)):
                mine = [one["algorithm"] for one in got if one["from"] <= size][-1]
                best = select_algorithm(size, build(ranks)).predictions[0]
                assert mine["latency_s"] + mine["s_per_byte"] * size == pytest.approx(best.time_s, rel=1e-6)


def test_the_verdict_follows_topology_ranks_and_the_keyboard(open_page) -> None:
    page = open_page(figure("PCIe tree", ranks=8, size_bytes=2**20))
    verdict = page.locator(f"{NAME} .verdict")
    small = select_algorithm(2**20, TOPOLOGIES["PCIe tree"][0](8))
    assert verdict.inner_text() == f"{small.algorithm}: {1e6 * small.predictions[0].time_s:.3g} µs in 8 steps"
    page.get_by_label("Array size in bytes").focus()
    page.keyboard.press("End")
    assert verdict.inner_text().startswith("ring: ")
    page.get_by_label("Topology").select_option("torus")
    assert page.get_by_label("Ranks").input_value() == "16"
    page.get_by_label("Ranks").select_option("64")
    assert verdict.inner_text().startswith("hierarchical, islands of ")
    page.get_by_label("Compare").select_option("naive")
    assert page.locator(f"{NAME} .detail").inner_text().startswith("naive takes ")


def test_a_crossover_is_marked_on_the_fastest_curve(open_page) -> None:
    page = open_page(figure("PCIe tree", ranks=8))
    distances = page.eval_on_selector(
        NAME,
        """(el) => { const svg = el.shadowRoot.querySelector("svg[role=img]"), path = svg.querySelector("path.fastest");
          return [...svg.querySelectorAll("circle.cross")].map((mark) => {
            const [x, y] = ["cx", "cy"].map((name) => Number(mark.getAttribute(name)));
            let best = Infinity;
            for (let i = 0; i <= 4000; i++) {
              const p = path.getPointAtLength(path.getTotalLength() * i / 4000);
              best = Math.min(best, Math.hypot(p.x - x, p.y - y));
            }
            return best; }); }""",
    )
    assert len(distances) >= 2 and max(distances) < 1.5


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_with_letters_of_a_readable_size(open_page, width: int) -> None:
    page = open_page(figure("nodes of 8 on rails", ranks=64), width=width)
    assert_readable(page, NAME, width, texts=9)
