from __future__ import annotations

import json
import random
import re

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.inference.speculative import best_num_speculative_tokens, expected_tokens, flops_ratio, speedup
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.speculation import MAX_SPECULATIVE_TOKENS, SpeculationGain, speculation_data, speculation_table
from tests.pages import assert_readable

NAME = "mlsys-speculation"


def figure(acceptance_rate: float = 0.7, **options) -> str:
    data = speculation_data(acceptance_rate, **options)
    return element("speculation", fallback=speculation_table(data), **data)._repr_html_()


def test_the_figure_computes_like_the_package(open_module) -> None:
    rng = random.Random(7)
    cases = [
        [rng.random(), rng.randint(1, MAX_SPECULATIVE_TOKENS), rng.choice([0.0, rng.uniform(0, 0.5)])]
        for _ in range(300)
    ]
    cases += [[0.0, 4, 0.1], [1.0, 16, 0.0], [1.0, 1, 0.5]]
    page = open_module("speculation", "expectedTokens", "speedup", "flopsRatio", "bestNumSpeculativeTokens")
    got = page.evaluate(
        """(cases) => cases.map(([a, k, c]) =>
          [expectedTokens(a, k), speedup(a, k, c), flopsRatio(a, k, c), bestNumSpeculativeTokens(a, c)])""",
        cases,
    )
    for (a, k, c), (*shown, best) in zip(cases, got, strict=True):
        assert shown == pytest.approx([expected_tokens(a, k), speedup(a, k, c), flops_ratio(a, k, c)], rel=1e-12)
        # Not the numbers of drafts: where drafts cost nothing, more of them gain less than sums are rounded by.
        assert speedup(a, best, c) == pytest.approx(
            speedup(a, best_num_speculative_tokens(a, c, MAX_SPECULATIVE_TOKENS), c), rel=1e-12
        )


def test_the_table_has_the_figure_s_and_the_best_number() -> None:
    text = speculation_table(speculation_data(0.5, num_speculative_tokens=3, draft_cost=0.1))
    row = f"<td>0.8</td><td>{expected_tokens(0.8, 3):.2f}</td><td>{speedup(0.8, 3, 0.1):.2f}</td>"
    best = best_num_speculative_tokens(0.8, 0.1)
    assert row in text and f"<td>{best}: {speedup(0.8, best, 0.1):.2f}</td>" in text


@pytest.mark.parametrize(
    "options",
    [{"acceptance_rate": 1.1}, {"num_speculative_tokens": 0}, {"num_speculative_tokens": 17}, {"draft_cost": 0.6}],
)
def test_invalid_data_is_reported_in_one_line(options) -> None:
    with pytest.raises(InputError, match=r"not supported by the figure: got .*, expected 0 to 1, 1 to 16, 0 to 0\.5"):
        speculation_data(**options)


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = SpeculationGain.of(0.8, num_speculative_tokens=5, draft_cost=0.1)
    assert widget._esm == esm("speculation")
    site = re.search(r'application/json">(.*?)</script>', figure(0.8, num_speculative_tokens=5, draft_cost=0.1))
    assert site and json.loads(site.group(1)) == {
        name: getattr(widget, name) for name in ("acceptance_rate", "num_speculative_tokens", "draft_cost")
    }


def test_the_verdict_follows_the_keyboard_and_the_mouse(open_page) -> None:
    page = open_page(figure(0.7, num_speculative_tokens=4, draft_cost=0.05))
    verdict, detail = page.locator(f"{NAME} .verdict"), page.locator(f"{NAME} .detail")
    assert (
        verdict.inner_text()
        == f"{speedup(0.7, 4, 0.05):.2f} times as fast: {expected_tokens(0.7, 4):.2f} tokens per step"
    )
    page.get_by_role("slider", name="Acceptance rate").focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    page.get_by_role("slider", name="Draft tokens per step").focus()
    page.keyboard.press("ArrowRight")
    assert verdict.inner_text().startswith(f"{speedup(0.8, 5, 0.05):.2f} times as fast")
    best = best_num_speculative_tokens(0.8, 0.05, MAX_SPECULATIVE_TOKENS)
    assert detail.inner_text().endswith(f"Best: {best} draft tokens, {speedup(0.8, best, 0.05):.2f} times.")
    page.get_by_role("slider", name="Acceptance rate").focus()
    page.keyboard.press("Home")
    assert detail.inner_text().endswith("Best: no draft tokens.")
    box = page.locator(f"{NAME} svg[role=img]").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 100, steps=3)
    page.mouse.up()
    assert float(page.locator(f"{NAME} circle.dot").get_attribute("cx")) == pytest.approx(box["width"] * 0.6, abs=8)


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_with_letters_of_a_readable_size(open_page, width: int) -> None:
    page = open_page(figure(), width=width)
    assert_readable(page, NAME, width, texts=9)
