from __future__ import annotations

import json
import re

import pytest
import torch

from mlsys_lab.comm import run
from mlsys_lab.comm.collectives import all_reduce
from mlsys_lab.comm.collectives.ring_states import ring_states
from mlsys_lab.errors import InputError
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.ring import ELEMENTS, RANKS, Ring, ring_data, ring_table
from tests.pages import read_letter_sizes, settle

NAME = "mlsys-ring"
SHOWN = """(el) => { const out = {};
  for (const g of el.shadowRoot.querySelectorAll("[data-chunk]")) {
    const frame = g.querySelector(".frame");
    const [left, wide] = ["x", "width"].map((name) => Number(frame.getAttribute(name)));
    // The stripes by their place: a rank's own colour is the one of the square beside its name.
    const stripes = [...g.querySelectorAll("rect:not([class])")].map((r) => [
      Math.round((Number(r.getAttribute("x")) - left) / Number(r.getAttribute("width"))), getComputedStyle(r).fill]);
    (out[g.dataset.rank] ??= []).push({
      stripes, arrived: frame.classList.contains("arrived"), whole: Boolean(g.querySelector(".whole")), wide });
  }
  return out; }"""
SQUARES = """(el) => [...el.shadowRoot.querySelectorAll("svg[role=img] > rect")].map((r) => getComputedStyle(r).fill)"""


def figure(ranks: int = 4, step: int = 0) -> str:
    data = ring_data(ranks, step)
    return element("ring", fallback=ring_table(data), **data)._repr_html_()


def test_the_data_is_what_was_recorded_of_runs() -> None:
    data = ring_data()
    assert [ring["ranks"] for ring in data["rings"]] == list(RANKS)
    for ring in data["rings"]:
        states = ring_states(ring["ranks"], ELEMENTS)
        assert len(ring["steps"]) == len(states)
        for step, state in zip(ring["steps"], states, strict=True):
            assert [[tuple(content) for content in row] for row in step["held"]] == [list(row) for row in state.held]
            assert len(step["arrivals"]) == len(state.arrivals) and step["adds"] == state.adds


def test_the_table_has_a_row_for_each_step() -> None:
    rows = ring_table(ring_data(3)).split("<tr>")[2:]
    assert rows[0].startswith("<td>0</td><td>1, 1, 1</td>") and rows[-1].startswith("<td>4</td><td>3, 3, 3</td>")
    assert len(rows) == 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ring_data(7), "no ring of this size: got 7, expected 2 to 6 ranks"),
        (lambda: ring_data(3, 5), "a ring of 3 has no such step: got 5, expected 0 to 4"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_line(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = Ring.of(5, 2)
    assert widget._esm == esm("ring") and (widget.ranks, widget.step) == (5, 2)
    site = re.search(r'application/json">(.*?)</script>', figure())
    assert site and json.loads(site.group(1))["rings"] == widget.rings


@pytest.mark.parametrize("ranks", RANKS)
def test_every_step_shows_the_recorded_state_in_the_ranks_colours(open_page, ranks: int) -> None:
    page = open_page(figure(ranks))
    box = page.locator(f"{NAME} .figure")
    box.focus()
    squares = page.eval_on_selector(NAME, SQUARES)
    assert len(squares) == len(set(squares)) == ranks
    for number, state in enumerate(ring_states(ranks, ELEMENTS)):
        assert box.get_attribute("data-step") == str(number)
        arrived = {(one.destination, one.chunk) for one in state.arrivals}
        shown = page.eval_on_selector(NAME, SHOWN)
        for rank, row in enumerate(state.held):
            for chunk, content in enumerate(row):
                got = shown[str(rank)][chunk]
                assert got["stripes"] == [[one, squares[one]] for one in content]
                assert got["arrived"] == ((rank, chunk) in arrived)
                assert got["whole"] == (len(content) == ranks)
        page.keyboard.press("ArrowRight")
    assert box.get_attribute("data-step") == str(2 * (ranks - 1))


def test_messages_and_bytes_are_counted_up_to_the_ledger_s(open_page) -> None:
    page = open_page(figure(3, step=4))
    count = page.locator(f"{NAME} .count")
    ledger = run(all_reduce.all_reduce, [torch.zeros(ELEMENTS, dtype=torch.int64)] * 3).ledger
    whole = f"{len(ledger.messages)} of 12 messages, {ledger.total_bytes:,} of 16,000 bytes"
    assert count.inner_text() == f"{whole}; at most {max(ledger.sent_bytes()):,} from one rank"
    page.locator(f"{NAME} .figure").focus()
    page.keyboard.press("Home")
    assert count.inner_text() == "0 of 12 messages, 0 of 16,000 bytes; at most 0 from one rank"
    page.get_by_role("button", name="Next step").click()
    first = [message.size_bytes for message in ledger.messages if message.start == 0]
    assert (
        count.inner_text() == f"3 of 12 messages, {sum(first):,} of 16,000 bytes; at most {max(first):,} from one rank"
    )


def test_words_follow_the_phase_and_another_ring_begins_anew(open_page) -> None:
    page = open_page(figure(4, step=3))
    said = page.locator(f"{NAME} .said")
    assert said.inner_text().startswith("Reduce-scatter, step 3 of 3")
    assert said.inner_text().endswith("Now each rank has the whole sum of one chunk.")
    page.get_by_role("button", name="Next step").click()
    assert said.inner_text().startswith("All-gather, step 1 of 3") and "of all ranks, and keeps it" in said.inner_text()
    page.get_by_role("combobox", name="Ranks").select_option("6")
    assert page.locator(f"{NAME} .figure").get_attribute("data-step") == "0"
    page.get_by_label("Step", exact=True).focus()
    page.keyboard.press("End")
    assert said.inner_text().startswith("All-gather, step 5 of 5")
    assert said.inner_text().endswith("Now each rank has the whole sum of every chunk.")


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_with_letters_of_a_readable_size(open_page, width: int) -> None:
    page = open_page(figure(6, step=7), width=width)
    settle(page)
    sizes = read_letter_sizes(page, NAME)
    widths = page.eval_on_selector(
        NAME, '(el) => [...el.shadowRoot.querySelectorAll(".frame")].map((r) => r.getBoundingClientRect().width)'
    )
    assert len(sizes) == 1 + 2 * 6 and min(sizes) >= 12
    assert min(widths) >= 24  # four pixels for each of six stripes
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_paper_has_the_state_and_no_buttons(open_page) -> None:
    page = open_page(figure(4, step=2), media="print")
    assert not page.get_by_role("button", name="Next step").is_visible()
    assert page.locator(f"{NAME} .count").is_visible() and page.locator(f"{NAME} svg[role=img]").is_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_stripes_stand_out_from_an_empty_chunk(open_page, theme: str) -> None:
    """A contrast of 3 : 1, as WCAG 1.4.11 asks of what must be told apart."""
    page = open_page(figure(6), theme=theme)
    empty = page.eval_on_selector(NAME, "(el) => getComputedStyle(el.shadowRoot.querySelector('.cell')).fill")
    for colour in page.eval_on_selector(NAME, SQUARES):
        assert contrast(colour, empty) >= 3


def contrast(one: str, other: str) -> float:
    """Contrast of two colours "rgb(r, g, b)" as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)
