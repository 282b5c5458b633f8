from __future__ import annotations

import json
import random
import re

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.flops.memory import RECIPES, ZERO_STAGES, states
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.zero_stages import MODELS, ZeroStages, zero_stages_data, zero_stages_table, zero_states
from tests.pages import assert_readable

NAME = "mlsys-zero_stages"


def figure(model: str = "llama3-8b", **options) -> str:
    data = zero_stages_data(model, **options)
    return element("zero_stages", fallback=zero_stages_table(data), **data)._repr_html_()


def test_the_figure_and_python_count_alike(open_module) -> None:
    rng = random.Random(8)
    cases = [
        [rng.uniform(1e8, 1e12), rng.choice(list(RECIPES)), 2 ** rng.randint(0, 13), rng.choice(ZERO_STAGES)]
        for _ in range(200)
    ]
    data = zero_stages_data()
    page = open_module("zero_stages", "states", "sumStates")
    got = page.evaluate(
        """([cases, recipes]) => cases.map(([count, name, ranks, stage]) =>
          sumStates(states(count, recipes.find((one) => one.name === name), ranks, stage)))""",
        [cases, data["recipes"]],
    )
    expected = [states(n, RECIPES[name], data=ranks, zero_stage=stage).total for n, name, ranks, stage in cases]
    assert got == pytest.approx(expected, rel=1e-12)


def test_the_table_has_a_row_for_each_number_of_ranks() -> None:
    data = zero_stages_data("llama3-70b")
    cells = "".join(f"<td>{zero_states(data, stage, 64).total / 1e9:,.1f}</td>" for stage in ZERO_STAGES)
    assert f"<tr><td>64</td>{cells}</tr>" in zero_stages_table(data)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"model": "llama3-8"}, r"not in the figure: got llama3-8, .*help: did you mean"),
        ({"recipe": "fp64"}, "not in the figure: got fp64"),
        ({"gpu": "H1"}, "not in the figure: got H1"),
        ({"ranks": 12}, "not supported by the figure: got 12, expected a power of two up to 8192"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_line(options, complaint) -> None:
    with pytest.raises(InputError, match=complaint):
        zero_stages_data(**options)


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = ZeroStages.of("gpt3-175b", ranks=512, gpu="A100 80GB")
    assert widget._esm == esm("zero_stages")
    site = re.search(r'application/json">(.*?)</script>', figure("gpt3-175b", ranks=512, gpu="A100 80GB"))
    data = json.loads(site.group(1)) if site else {}
    assert data and data == {name: getattr(widget, name) for name in data}


def test_the_verdict_follows_menus_and_the_keyboard(open_page) -> None:
    page = open_page(figure(ranks=1))
    verdict = page.locator(f"{NAME} .verdict")
    assert verdict.inner_text().startswith("No stage fits a device")
    page.get_by_label("Data-parallel ranks").focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    data = zero_stages_data(ranks=4)
    fits = next(stage for stage in ZERO_STAGES if zero_states(data, stage).total <= data["gpus"][2]["memory_bytes"])
    assert verdict.inner_text().startswith(f"Stage {fits} is the first that fits")
    page.get_by_label("Model").select_option(MODELS[0])
    assert verdict.inner_text().startswith("Fits without ZeRO")
    widths = page.locator(f"{NAME} rect[data-stage='3']").evaluate_all(
        "(bars) => bars.map((bar) => Number(bar.getAttribute('width')))"
    )
    whole = page.locator(f"{NAME} rect[data-stage='0']").evaluate_all(
        "(bars) => bars.map((bar) => Number(bar.getAttribute('width')))"
    )
    assert sum(widths) == pytest.approx(sum(whole) / 4, rel=1e-6)


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_with_letters_of_a_readable_size(open_page, width: int) -> None:
    page = open_page(figure(), width=width)
    assert_readable(page, NAME, width, texts=9)
