from __future__ import annotations

import json
import re
import shlex

import pytest

from mlsys_lab.cli import main
from mlsys_lab.errors import InputError
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.planner import Planner, planner_data, planner_table
from tests.pages import read_letter_sizes

NAME = "mlsys-planner"
SMALL = {"devices": 16, "batch": 32, "tokens": 4096}


def figure(model: str = "llama3-8b", **options) -> str:
    data = planner_data(model, **(SMALL | options))
    return element("planner", fallback=planner_table(data), **data)._repr_html_()


def plans_of(capsys, *arguments: str) -> list[dict]:
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["plans"]


def test_the_table_holds_the_fastest_layouts(capsys) -> None:
    data = planner_data("llama3-8b", **SMALL)
    best = plans_of(
        capsys, "llama3-8b", "--devices", "16", "--batch", "32", "--sequence", "4096",
    )[0]  # fmt: skip
    text = planner_table(data, max_rows=3)
    degrees = "".join(f"<td>{best['layout'][name]}</td>" for name in ("data", "tensor", "pipeline", "context"))
    assert degrees in text and f"<td>{best['time_s']:.3g}</td>" in text
    assert text.count("<tr>") == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: planner_data("llama9"), "no such preset"),
        (lambda: planner_data(device_name="H1000"), "no such device"),
        (lambda: planner_data(recipe_name="mixed"), "unknown precision recipe"),
    ],
)
def test_a_name_that_there_is_not_is_said_in_a_line(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = Planner.of("llama3-8b", device_name="H200", given={"tensor": 8}, **SMALL)
    assert widget._esm == esm("planner")
    assert (widget.preset, widget.device, widget.count, widget.given) == ("llama3-8b", "H200", 16, {"tensor": 8})
    site = re.search(r'application/json">(.*?)</script>', figure())
    assert site and json.loads(site.group(1))["devices"] == widget.devices


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "device_name": "A100 80GB",
            "network": 6.25,
            "reserve": 0.0,
            "given": {"recomputation": "full", "zero_stage": 1},
        },
        {"model": "mixtral-8x7b", "devices": 8, "given": {"sequence_parallel": False, "micro_batch": 1}},
    ],
    ids=["plain", "given", "does not fit"],
)
def test_the_command_under_the_plans_prints_the_same(open_page, capsys, options) -> None:
    page = open_page(figure(**options))
    command = shlex.split(page.locator(f"{NAME} .command").inner_text())
    assert command[:2] == ["mlsys-lab", "plan"]
    found = plans_of(capsys, *command[2:])
    rows = page.locator(f"{NAME} .plans li").all_inner_texts()
    assert len(rows) == min(8, len(found))
    fitting = sum(one["missing_bytes"] == 0 for one in found)
    assert f"{len(found)} layouts of" in page.locator(f"{NAME} .detail").inner_text()
    assert f", of which {fitting} fit" in page.locator(f"{NAME} .detail").inner_text()
    verdict = page.locator(f"{NAME} .verdict").inner_text()
    assert verdict.startswith("Best: " if fitting else "Nothing fits: ")
    for text, one in zip(rows, found, strict=False):
        assert f"{one['memory']['total'] / 1e9:.3g} GB" in text
        assert ("does not fit" in text) == (one["missing_bytes"] > 0)


def test_what_is_given_is_kept_and_the_rest_is_shown_when_asked(open_page) -> None:
    page = open_page(figure())
    rows = page.locator(f"{NAME} .plans li")
    assert rows.count() == 8
    page.get_by_role("button", name="Show all").click()
    everything = rows.count()
    assert everything > 8 and "fastest" in rows.first.inner_text() and "loses by" in rows.nth(1).inner_text()
    page.get_by_text("What of the layout is given").click()
    page.get_by_label("tensor ranks").fill("4")
    page.get_by_label("tensor ranks").press("Tab")
    assert 0 < rows.count() < everything
    assert all("4 tensor" in text for text in rows.all_inner_texts())
    page.get_by_label("tensor ranks").fill("")
    page.get_by_label("tensor ranks").press("Tab")
    page.get_by_label("recomputation").select_option("full")
    assert all("full recomputation" in text for text in rows.all_inner_texts())
    assert "--recompute full" in page.locator(f"{NAME} .command").inner_text().replace("\n", " ")


def test_what_cannot_be_is_one_line_in_the_figure(open_page) -> None:
    page = open_page(figure(given={"tensor": 1}))
    error, results = page.locator(f"{NAME} .error"), page.locator(f"{NAME} .results")
    nothing = "no layout divides llama3-8b so: got 16 devices, 32 sequences of 4096 tokens, tensor 3"
    for label, typed, message in (
        ("tensor ranks", "3", f"{nothing}; help: try a batch or devices in powers of two"),
        ("tensor ranks", "0", "Layout.tensor out of range: got 0, expected a whole number, at least 1"),
        ("tensor ranks", "", ""),
        ("sequences", "", "batch out of range: got nothing, expected a whole number, at least 1"),
        ("sequences", "32", ""),
        ("GB kept free", "90", "memory kept free out of range: got 90 GB, expected 0 to 85.9 GB"),
        ("GB kept free", "0", ""),
        ("network, GB/s", "0", "the network out of range: got 0 GB/s, expected more than 0"),
        ("network, GB/s", "50", ""),
    ):
        page.get_by_label(label).fill(typed)
        page.get_by_label(label).press("Tab")
        assert error.inner_text() == message
        assert results.is_visible() == (message == "")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_it_fits_the_screen_with_letters_of_a_readable_size(open_page, width: int, model: str) -> None:
    page = open_page(figure(model, devices=64, batch=64), width=width)
    page.get_by_text("What of the layout is given").click()
    sizes = read_letter_sizes(page, NAME)
    assert not sizes or min(sizes) >= 11
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    letters = """(el) => [...el.shadowRoot.querySelectorAll(".plans div, .kinds li, label")]
      .map((node) => Number.parseFloat(getComputedStyle(node).fontSize))"""
    assert min(page.eval_on_selector(NAME, letters)) >= 11
    wide = """(el) => [...el.shadowRoot.querySelectorAll(".bar")].map((bar) => {
      const parts = [...bar.children].map((part) => part.getBoundingClientRect().width);
      return parts.reduce((sum, part) => sum + part) / bar.getBoundingClientRect().width; })"""
    shares = page.eval_on_selector(NAME, wide)
    assert max(shares) == pytest.approx(1, abs=0.01) and min(shares) > 0.1
