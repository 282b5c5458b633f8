from __future__ import annotations

import json
import re

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.cache_fill import LAYOUTS, SLOTS, CacheFill, cache_fill_data, cache_fill_table
from tests.pages import settle
from tests.widgets.test_ring import contrast

NAME = "mlsys-cache_fill"
SHOWN = """(el) => [...el.shadowRoot.querySelectorAll("[data-slot]")].map((g) => {
  const held = [...g.querySelectorAll(".held")];
  return { slot: [Number(g.dataset.position), g.dataset.owners, Number(g.dataset.seen)],
    colours: held.map((r) => getComputedStyle(r).fill), strong: held.every((r) => getComputedStyle(r).opacity === "1"),
    words: g.querySelector("text")?.textContent ?? "", isNew: Boolean(g.querySelector(".new")) }; })"""


def figure(layout: str = "contiguous", step: int = 0) -> str:
    data = cache_fill_data(layout, step)
    return element("cache_fill", fallback=cache_fill_table(data), **data)._repr_html_()


def test_the_layouts_differ_in_allocated_slots() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    steps = {one["name"]: one["steps"] for one in cache_fill_data()["layouts"]}
    assert torch.equal(before, torch.get_rng_state())
    assert tuple(steps) == LAYOUTS and len({len(one) for one in steps.values()}) == 1
    assert all(len(step["slots"]) == SLOTS for one in steps.values() for step in one)
    held = {name: max(step["num_allocated"] for step in one) for name, one in steps.items()}
    assert held == {"contiguous": 48, "paged": 32, "sliding window": 24}
    assert steps["paged"][4]["num_cached_tokens"] == {"B": 8}


def test_the_table_has_a_row_for_each_step() -> None:
    data = cache_fill_data()
    rows = cache_fill_table(data).split("<tr>")[2:]
    assert rows[0].startswith("<td>0</td><td>0, 0</td>") and len(rows) == len(data["layouts"][0]["steps"])
    assert rows[4] == "<td>4</td><td>32, 18</td><td>16, 4</td><td>16, 8</td></tr>"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cache_fill_data("page"), "no such layout: got page, expected contiguous, paged"),
        (lambda: cache_fill_data("paged", 99), "no such step: got 99, expected 0 to 16"),
    ],
)
def test_invalid_data_is_reported_in_one_line(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = CacheFill.of("paged", 3)
    assert widget._esm == esm("cache_fill") and (widget.layout, widget.step) == ("paged", 3)
    site = re.search(r'application/json">(.*?)</script>', figure())
    assert site and json.loads(site.group(1))["layouts"] == widget.layouts


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_step_shows_what_was_recorded(open_page, layout: str) -> None:
    page = open_page(figure(layout))
    steps = next(one["steps"] for one in cache_fill_data()["layouts"] if one["name"] == layout)
    page.locator(f"{NAME} .figure").focus()
    colour: dict[str, str] = {}
    for step in steps:
        shown = page.eval_on_selector(NAME, SHOWN)
        assert [one["slot"] for one in shown] == step["slots"]
        for one, (position, owners, seen) in zip(shown, step["slots"], strict=True):
            assert one["words"] == (str(position) if position >= 0 else "")
            assert one["strong"] or not seen
            assert [colour.setdefault(name, got) for name, got in zip(owners, one["colours"], strict=True)] == one[
                "colours"
            ]
        assert sum(one["isNew"] for one in shown) == sum(end - first for first, end in step["new_tokens"].values())
        page.keyboard.press("ArrowRight")
    assert len(set(colour.values())) == len(colour) == 4


def test_count_and_description_follow_and_another_layout_keeps_the_step(open_page) -> None:
    page = open_page(figure("contiguous", step=4))
    count, description = page.locator(f"{NAME} .count"), page.locator(f"{NAME} .description")
    assert count.inner_text() == "32 of 48 slots allocated, 14 read by the next query: 56 % wasted"
    assert description.inner_text() == "A decodes token 9; B arrives and prefills tokens 0 to 3."
    page.get_by_role("combobox", name="Layout").select_option("paged")
    assert count.inner_text() == "16 of 48 slots allocated, 12 read by the next query: 25 % wasted"
    assert description.inner_text() == "A decodes token 9; B arrives, has 8 cached tokens and prefills tokens 8 to 9."
    page.get_by_label("Step", exact=True).focus()
    page.keyboard.press("End")
    assert description.inner_text() == "All sequences have finished."


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_with_numbers_inside_their_slots(open_page, width: int) -> None:
    page = open_page(figure("paged", step=8), width=width)
    settle(page)
    sizes, inside = page.eval_on_selector(
        NAME,
        """(el) => { const texts = [...el.shadowRoot.querySelectorAll("[data-slot] text")];
          const scale = el.shadowRoot.querySelector("svg[role=img]").getBoundingClientRect().width
            / el.shadowRoot.querySelector("svg[role=img]").viewBox.baseVal.width;
          return [texts.map((t) => parseFloat(getComputedStyle(t).fontSize) * scale), texts.map((t) => {
            const [a, b] = [t.getBoundingClientRect(), t.parentNode.querySelector(".free").getBoundingClientRect()];
            return a.left >= b.left - 0.5 && a.right <= b.right + 0.5; })]; }""",
    )
    assert min(sizes) >= 12 and all(inside)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_sequences_stand_out_from_a_free_slot(open_page, theme: str) -> None:
    page = open_page(figure("contiguous", step=11), theme=theme)
    free = page.eval_on_selector(NAME, "(el) => getComputedStyle(el.shadowRoot.querySelector('.free')).fill")
    for one in page.eval_on_selector(NAME, SHOWN):
        assert all(contrast(colour, free) >= 3 for colour in one["colours"])
