from __future__ import annotations

import json
import random
import re

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.strides import Strides, is_contiguous, positions, strides_data, strides_table
from tests.pages import settle


@pytest.fixture
def t() -> torch.Tensor:
    return torch.arange(12).reshape(3, 4)


def views(t: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"t": t, "t.T": t.T, "wide": t[:, :1].expand(3, 4), "tail": t[1:, 1:3]}


def figure(t: torch.Tensor, **state) -> str:
    return element("strides", **(strides_data(views(t)) | state))._repr_html_()


def test_positions_are_where_torch_reads(t) -> None:
    # The tensor's values are its own storage positions, so torch itself is the oracle.
    for view in (*views(t).values(), t[:, ::2], t[1], t[2, 3], t.flatten()[:6].unfold(0, 3, 1), t[:0]):
        assert positions(view.shape, view.stride(), view.storage_offset()) == view.flatten().tolist()


def test_contiguity_is_torch_s() -> None:
    rng = random.Random(5)
    verdicts = set()
    for _ in range(300):
        shape, stride = [[rng.choice([1, 2, 3]) for _ in range(2)] for _ in range(2)]
        if rng.random() < 0.3:
            stride = [shape[1], 1]
        verdict = torch.as_strided(torch.zeros(32), shape, stride).is_contiguous()
        assert is_contiguous(shape, stride) == verdict, (shape, stride)
        verdicts.add(verdict)
    assert verdicts == {True, False}


def test_the_table_says_what_the_figure_draws(t) -> None:
    text = strides_table(strides_data(views(t)))
    assert "<td>t.T</td><td>(4, 3)</td><td>(1, 4)</td><td>0</td><td>0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11</td>" in text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: {}, "nothing to show"),
        (lambda: {"a": torch.zeros(2, 2), "b": torch.zeros(2, 2)}, "do not share a storage: got 2 storages"),
        (lambda: {"a": torch.zeros(4)}, r"view 'a' cannot be drawn: got shape \(4,\)"),
        (lambda: {"a": torch.zeros(2, 0)}, "cannot be drawn"),
        (lambda: {"a": torch.zeros(9, 1)}, "cannot be drawn"),
        (lambda: {"a": torch.zeros(5, 5)}, "too large to draw: got 25 cells"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_line(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        strides_data(make())


def test_the_notebook_s_widget_carries_the_site_s_module_and_data(t) -> None:
    widget = Strides.from_views(views(t))
    assert widget._esm == esm("strides")
    assert (widget.cells, widget.shape, widget.stride, widget.offset) == (12, [3, 4], [4, 1], 0)
    site = re.search(r'application/json">(.*?)</script>', figure(t))
    assert site and json.loads(site.group(1))["presets"] == widget.presets


def test_the_figure_and_python_agree_on_positions_and_contiguity(open_module) -> None:
    rng = random.Random(7)
    page = open_module("strides", "positions", "isContiguous")
    for _ in range(100):
        shape, stride, offset = [rng.randint(1, 5) for _ in "ab"], [rng.randint(0, 6) for _ in "ab"], rng.randint(0, 9)
        got = page.evaluate("([s, t, o]) => [positions(s, t, o), isContiguous(s, t)]", [shape, stride, offset])
        assert got == [positions(shape, stride, offset), is_contiguous(shape, stride)]


def test_a_preset_changes_the_view_and_says_what_became_of_it(open_page, t) -> None:
    page = open_page(figure(t))
    verdict, code = page.locator("mlsys-strides .verdict"), page.locator("mlsys-strides .code")
    assert verdict.inner_text() == "Contiguous"
    page.get_by_role("button", name="t.T", exact=True).click()
    assert verdict.inner_text() == "Not contiguous"
    assert code.inner_text() == "torch.as_strided(t, (4, 3), (1, 4), 0)"
    assert page.get_by_role("button", name="t.T", exact=True).get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="wide").click()
    assert verdict.inner_text() == "Not contiguous; 12 elements share 3 cells"
    page.get_by_role("button", name="transpose").click()
    assert code.inner_text() == "torch.as_strided(t, (4, 3), (0, 4), 0)"


def test_the_keyboard_walks_the_elements_and_stops_at_the_edge(open_page, t) -> None:
    page = open_page(figure(t, shape=[4, 3], stride=[1, 4]))
    page.get_by_label("Elements of the view").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowUp", "ArrowDown"):
        page.keyboard.press(key)
    assert page.locator("mlsys-strides .detail").inner_text() == "Element (1, 2) is cell 0 + 1·1 + 2·4 = 9."


def test_a_view_beyond_the_storage_is_refused_in_words(open_page, t) -> None:
    page = open_page(figure(t))
    offset = page.get_by_label("offset")
    offset.fill("3")
    offset.press("Tab")
    verdict = page.locator("mlsys-strides .verdict")
    assert verdict.inner_text() == "Cell 12 is outside a storage of 12 cells: PyTorch refuses this view."
    assert verdict.get_attribute("data-state") == "bad"
    with pytest.raises(RuntimeError, match="out of bounds for storage"):
        torch.as_strided(t, (3, 4), (4, 1), 3)


def test_nonsense_in_an_input_becomes_the_nearest_sense(open_page, t) -> None:
    page = open_page(figure(t))
    for typed, code in (("-4", "(1, 4)"), ("99", "(8, 4)"), ("", "(1, 4)"), ("2.4", "(2, 4)")):
        page.get_by_label("rows").fill(typed)
        page.get_by_label("rows").press("Tab")
        assert code in page.locator("mlsys-strides .code").inner_text()


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_with_letters_of_a_readable_size(open_page, t, width: int) -> None:
    wide = torch.arange(16).reshape(2, 8)
    page = open_page(element("strides", **strides_data({"wide": wide, "tall": wide.T}))._repr_html_(), width=width)
    for name in ("wide", "tall"):
        page.get_by_role("button", name=name).click()
        settle(page)
        sizes = page.eval_on_selector(
            "mlsys-strides",
            """(el) => { const svg = el.shadowRoot.querySelector("svg[role=img]");
              const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
              const size = (text) => parseFloat(getComputedStyle(text).fontSize) * scale;
              return [...svg.querySelectorAll("text")].map(size); }""",
        )
        assert len(sizes) == 16 + 16 + 2 and min(sizes) >= 10.9
        assert page.evaluate("document.documentElement.scrollWidth") <= width
