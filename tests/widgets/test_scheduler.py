from __future__ import annotations

import json
import re
from random import Random

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.scheduler import (
    INITIAL_ARRIVALS,
    KINDS,
    MAX_NUM_SEQS,
    MAX_REQUESTS,
    MAX_TOKEN_BUDGET,
    SchedulerSteps,
    run_scheduler,
    scheduler_data,
    scheduler_table,
)
from tests.pages import read_letter_sizes, settle

NAME = "mlsys-scheduler"


def figure(*args, **options) -> str:
    data = scheduler_data(*args, **options)
    return element("scheduler", fallback=scheduler_table(data), **data)._repr_html_()


def draw_load(seed: int) -> tuple[list[tuple[int, str]], int]:
    random = Random(seed)
    count = random.randint(0, MAX_REQUESTS)
    latest = random.choice((2, 6, 12, 40))
    arrivals = [(random.randint(0, latest), random.choice(list(KINDS))) for _ in range(count)]
    return arrivals, random.randint(MAX_NUM_SEQS, MAX_TOKEN_BUDGET)


def test_the_figure_schedules_like_the_package(open_module) -> None:
    loads = [(list(INITIAL_ARRIVALS), 6), *map(draw_load, range(200))]
    page = open_module("scheduler", "runScheduler")
    got = page.evaluate(
        "(all) => all.map(runScheduler)", [scheduler_data(one, token_budget=budget) for one, budget in loads]
    )
    seen = {"preempted": 0, "num_cached_tokens": 0, "waiting": 0}
    for (arrivals, budget), states in zip(loads, got, strict=True):
        want = run_scheduler(arrivals, budget)
        assert states == want, (arrivals, budget)
        for part in seen:
            seen[part] += sum(bool(state[part]) for state in want)
    assert all(count > 20 for count in seen.values()), f"loads that hardly test anything: {seen}"


def test_the_initial_figure_shows_a_preemption_a_priority_and_a_prefix() -> None:
    states = run_scheduler(INITIAL_ARRIVALS, 6)
    assert states[5]["preempted"] == ["C"] and states[5]["running"][0] == "E"
    assert states[8]["num_cached_tokens"] == {"D": 8}
    assert max(sum(state["num_scheduled_tokens"].values()) for state in states) == 6
    assert sorted(name for state in states for name in state["finished"]) == list("ABCDE")
    assert states[-1]["waiting"] == states[-1]["running"] == []


def test_the_table_lists_every_step() -> None:
    text = scheduler_table(scheduler_data())
    assert "<td>5</td><td>E 3, A 1, B 1</td><td>C</td><td>–</td><td>C D</td><td>7</td>" in text


@pytest.mark.parametrize(
    ("arrivals", "options", "complaint"),
    [
        ([(0, "documents")], {}, "unknown kind of request: got documents, .*; help: did you mean 'document'"),
        ([(-1, "urgent")], {}, "a request arrives after a step: got -1, expected 0 or more"),
        (
            [(0, "urgent")] * 11,
            {},
            "not supported by the figure: got 11 requests, 6 tokens, expected up to 10, 4 to 16",
        ),
        ([], {"token_budget": 3}, "not supported by the figure: got 0 requests, 3 tokens"),
    ],
)
def test_invalid_data_is_reported_in_one_line(arrivals, options, complaint) -> None:
    with pytest.raises(InputError, match=complaint):
        scheduler_data(arrivals, **options)


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = SchedulerSteps.of([(0, "document"), (2, "urgent")], token_budget=8)
    assert widget._esm == esm("scheduler")
    site = re.search(r'application/json">(.*?)</script>', figure([(0, "document"), (2, "urgent")], token_budget=8))
    data = json.loads(site.group(1)) if site else {}
    assert data and data == {name: getattr(widget, name) for name in data}


def test_requests_are_added_by_clicking_and_steps_shown_by_keys(open_page) -> None:
    page = open_page(figure([]))
    verdict, detail = page.locator(f"{NAME} .verdict"), page.locator(f"{NAME} .detail").last
    assert verdict.inner_text() == "Before the first step"
    page.get_by_role("button", name="+ document").click()
    assert detail.inner_text().startswith("A waiting; 0 of 9 blocks")
    page.get_by_role("button", name="+ question").press("Enter")
    page.get_by_label("Next step").click()
    assert verdict.inner_text() == "Step 1: 6 of 6 tokens"
    assert detail.inner_text() == "B waiting; 4 of 9 blocks of 4 tokens in use."
    page.get_by_role("button", name="+ urgent").click()
    assert detail.inner_text().startswith("C, B waiting")
    page.keyboard.press("ArrowRight")
    assert page.locator(f"{NAME} rect[data-request='C'].prefill").count() == 1
    page.get_by_label("Token budget").focus()
    page.keyboard.press("End")
    assert verdict.inner_text() == "Step 2: 5 of 16 tokens"
    page.get_by_role("button", name="Clear").click()
    assert verdict.inner_text() == "Before the first step"
    for _ in range(MAX_REQUESTS):
        page.get_by_role("button", name="+ question").click()
    assert page.get_by_role("button", name="+ urgent").is_disabled()


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_with_letters_of_a_readable_size(open_page, width: int) -> None:
    page = open_page(figure(step=12), width=width)
    settle(page)
    sizes = read_letter_sizes(page, NAME)
    assert len(sizes) > 20 and min(sizes) >= 11
    assert page.evaluate("document.documentElement.scrollWidth") <= width
