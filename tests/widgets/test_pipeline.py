from __future__ import annotations

import json
import re

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.parallel.pipeline.schedules import max_in_flight
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.pipeline import (
    SCHEDULES,
    PipelineTimeline,
    make_schedule,
    pipeline_data,
    pipeline_table,
    simulate_schedule,
)
from tests.pages import assert_readable

NAME = "mlsys-pipeline"


def figure(schedule: str = "1F1B", **options) -> str:
    data = pipeline_data(schedule, **options)
    return element("pipeline", fallback=pipeline_table(data), **data)._repr_html_()


def test_the_figure_and_python_schedule_and_play_alike(open_module) -> None:
    cases = [[name, p, m] for name in SCHEDULES for p in (1, 2, 3, 4, 8) for m in (1, 2, 5, 8, 12)]
    page = open_module("pipeline", "makeSchedule", "simulateSchedule", "maxInFlight")
    got = page.evaluate(
        """(cases) => cases.map(([name, p, m]) => {
          const schedule = makeSchedule(name, p, m);
          const orders = schedule.map((order) =>
            order.map((a) => [a.kind, a.microBatch, a.chunk]));
          return [orders, Math.max(...simulateSchedule(schedule).map((bar) => bar.end)), schedule.map(maxInFlight)];
        })""",
        cases,
    )
    for case, (orders, end_s, kept) in zip(cases, got, strict=True):
        schedule = make_schedule(*case)
        assert orders == [[list(action) for action in order] for order in schedule], case
        assert end_s == pytest.approx(simulate_schedule(schedule).end_s, rel=1e-12), case
        assert kept == list(map(max_in_flight, schedule)), case


def test_the_table_tells_idle_time_and_what_is_kept() -> None:
    text = pipeline_table(pipeline_data(ranks=4))
    row = ("8", "0.38", "27 %, keeps 8", "27 %, keeps 4", "16 %, keeps 5.5", "11 %, keeps 4")
    assert "".join(f"<td>{cell}</td>" for cell in row) in text


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"schedule": "1F2B"}, "no such schedule: got 1F2B"),
        ({"ranks": 9}, "not supported by the figure: got 9 ranks, 8 micro-batches, expected 1 to 8, 1 to 32"),
        ({"micro_batches": 0}, "not supported by the figure"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_line(options, complaint) -> None:
    with pytest.raises(InputError, match=complaint):
        pipeline_data(**options)


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = PipelineTimeline.of("GPipe", ranks=2, micro_batches=6)
    assert widget._esm == esm("pipeline")
    site = re.search(r'application/json">(.*?)</script>', figure("GPipe", ranks=2, micro_batches=6))
    data = json.loads(site.group(1)) if site else {}
    assert data and data == {name: getattr(widget, name) for name in data}


def test_the_verdict_follows_menu_and_keyboard(open_page) -> None:
    page = open_page(figure(ranks=4, micro_batches=8))
    verdict, detail = page.locator(f"{NAME} .verdict"), page.locator(f"{NAME} .detail")
    assert verdict.inner_text() == "27.3 % of the time idle: (p − 1)/m = 0.375 of the work"
    assert detail.inner_text() == "Rank 0 keeps activations of 4 micro-batches at once."
    assert page.locator(f"{NAME} rect[data-rank='3']").count() == 16
    page.get_by_label("Schedule").select_option("GPipe")
    assert detail.inner_text().startswith("Rank 0 keeps activations of 8")
    page.get_by_label("Micro-batches m").focus()
    page.keyboard.press("End")
    assert verdict.inner_text() == "8.57 % of the time idle: (p − 1)/m = 0.09375 of the work"
    page.get_by_label("Schedule").select_option("interleaved")
    page.get_by_label("Ranks p").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(f"{NAME} .slide output").nth(1).inner_text() == "35, a multiple of p"
    page.get_by_label("Schedule").select_option("zero bubble")
    assert verdict.inner_text() == "4 % of the time idle: (p − 1)/3m = 0.04167 of the work"
    assert page.locator(f"{NAME} rect.weight[data-rank='4']").count() == 32
    page.get_by_label("Micro-batches m").focus()
    page.keyboard.press("Home")
    assert verdict.inner_text().endswith("% of the time idle")


def test_every_key_press_changes_the_micro_batches_of_an_interleaved_schedule(open_page) -> None:
    page = open_page(figure("interleaved", ranks=4, micro_batches=8))
    shown = page.locator(f"{NAME} .slide output").nth(1)
    page.get_by_label("Micro-batches m").focus()
    for key, count in (("ArrowRight", 12), ("ArrowRight", 16), ("ArrowLeft", 12), ("End", 32), ("Home", 4)):
        page.keyboard.press(key)
        assert shown.inner_text() == f"{count}, a multiple of p"


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_with_letters_of_a_readable_size(open_page, width: int) -> None:
    page = open_page(figure(), width=width)
    assert_readable(page, NAME, width, texts=9)
