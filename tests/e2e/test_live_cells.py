"""Cells that run in the page, in a real browser: run, edit, an error, a loop without an end, reset, and a phone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import Locator, Page, expect

from book.live import session
from book.live.alone import run_alone

pytestmark = pytest.mark.timeout(1800)  # the first test may build the site

CHAPTER = "chapters/13-serving"
MACHINE, REQUEST, LOOP = "#cell-1", "#cell-5", "#cell-15"
"""Cells of the chapter: its machine and model, a request's FLOPs, the scheduler."""
LIVE_CELLS = 80
"""Fewest cells of all chapters that run in the page."""
RUN_ALL = """
exec(given["session"])
session, answers = Session(), {}
for index, cell in given["cells"].items():
    if cell["is_visible"]:
        emitted = answers[index] = []
        session.run(json.dumps(given["cells"]), int(index), lambda *output: emitted.append(output))
json.dump(answers, answer)
"""


def read_cells(file: Path) -> dict[str, Any]:
    """The cells of a page that can run, by index."""
    cells: dict[str, Any] = json.loads(file.read_text("utf-8"))["cells"]
    return cells


def text_of(html: BeautifulSoup) -> str:
    """Text without the spaces that separate elements."""
    return "".join(html.get_text().split())


def test_what_a_cell_gives_in_the_browsers_python_is_what_the_page_shows(site: Path) -> None:
    source, num_live = Path(session.__file__).read_text("utf-8"), 0
    for file in sorted((site / "chapters").glob("*.cells.json")):
        cells = read_cells(file)
        page = BeautifulSoup(
            file.with_name(file.name.replace(".cells.json", ".html")).read_text("utf-8"), "html.parser"
        )
        answers = run_alone(RUN_ALL, {"session": source, "cells": cells})
        num_live += len(answers)
        for outputs in answers.values():
            by_cell: dict[int, str] = {}
            for kind, index, content in outputs:
                assert kind != "error", (file.name, index, content)
                by_cell[index] = by_cell.get(index, "") + content
            for index, content in by_cell.items():
                shown = page.select_one(f"#cell-{index} > .cell_output")
                assert text_of(BeautifulSoup(content, "html.parser")) == (text_of(shown) if shown else ""), (
                    file.name,
                    index,
                )
    assert num_live >= LIVE_CELLS


@pytest.fixture
def chapter(page: Page, site_url: str) -> Page:
    """A chapter with live cells, just opened, with nothing blurred by its predictions."""
    page.goto(f"{site_url}{CHAPTER}.html")
    skips = page.locator(".predict-skip")
    expect(skips.first).to_be_visible()
    while skips.count():
        skips.first.click()
    return page


def press(cell: Locator, name: str) -> None:
    cell.get_by_role("button", name=name, exact=True).click()


def write(page: Page, cell: Locator, code: str) -> None:
    """Open a cell's editor and put this code in place of what is there."""
    press(cell, "Edit")
    cell.locator(".cm-content").click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(code)


def test_a_cell_runs_and_loads_python_at_the_first_click(chapter: Page) -> None:
    asked: list[str] = []
    chapter.on("request", lambda request: asked.append(request.url))
    cell = chapter.locator(REQUEST)
    shown = cell.locator(".cell_output").inner_text()
    assert not any("/live/" in url for url in asked)
    press(cell, "Run")
    expect(cell.locator(".live-status")).to_contain_text("Ran in")
    assert cell.locator(".cell_output").inner_text().split() == shown.split()
    assert any(url.endswith("pyodide.asm.wasm") for url in asked)
    asked.clear()
    press(chapter.locator(MACHINE), "Run")
    expect(chapter.locator("#cell-2 td").first).to_be_visible()
    expect(chapter.locator(MACHINE).locator(".live-status")).to_contain_text("Ran in")
    assert not any("pyodide" in url for url in asked)


def test_changed_code_changes_what_other_cells_give_until_it_is_reset(chapter: Page) -> None:
    machine, request = chapter.locator(MACHINE), chapter.locator(REQUEST)
    output = request.locator(".cell_output")
    shown = output.inner_text()
    press(machine, "Edit")
    machine.locator(".cm-content", has_text="gpus").click()
    code = machine.locator(".cm-content").inner_text().replace('preset("llama3-70b"), 8', 'preset("llama3-70b"), 16')
    chapter.keyboard.press("ControlOrMeta+a")
    chapter.keyboard.insert_text(code)
    press(request, "Run")
    expect(request.locator(".live-status")).to_contain_text("Ran in")
    changed = output.inner_text()
    assert changed.split() != shown.split()
    press(machine, "Reset")
    expect(machine.locator(".cm-editor")).to_have_count(0)
    press(request, "Run")
    expect(output).not_to_have_text(changed)
    expect(request.locator(".live-status")).to_contain_text("Ran in")
    assert output.inner_text().split() == shown.split()


def test_an_error_is_one_line_and_a_loop_without_an_end_can_be_stopped(chapter: Page) -> None:
    cell = chapter.locator(REQUEST)
    write(chapter, cell, "print('first')\nflops / 0")
    chapter.keyboard.press("Shift+Enter")
    expect(cell.get_by_role("alert")).to_have_text("NameError: name 'flops' is not defined (line 2)")
    expect(cell.locator(".cell_output")).to_contain_text("first")
    chapter.keyboard.press("ControlOrMeta+a")
    chapter.keyboard.insert_text("print('begun')\nwhile True:\n    pass")
    press(cell, "Run")
    expect(cell.locator(".cell_output")).to_contain_text("begun")
    expect(chapter.locator(MACHINE).get_by_role("button", name="Run")).to_be_disabled()
    press(cell, "Stop")
    expect(cell.locator(".live-status")).to_have_text("Stopped.")
    chapter.reload()
    shown = cell.locator(".cell_output").inner_text()
    press(cell, "Run")
    expect(cell.locator(".live-status")).to_contain_text("Ran in")
    assert cell.locator(".cell_output").inner_text().split() == shown.split()


def test_the_schedule_is_drawn_again_for_another_policy(chapter: Page) -> None:
    loop = chapter.locator(LOOP)
    press(loop, "Edit")
    loop.locator(".cm-content").click()
    code = loop.locator(".cm-content").inner_text().replace("max_num_batched_tokens=8", "max_num_batched_tokens=4")
    chapter.keyboard.press("ControlOrMeta+a")
    chapter.keyboard.insert_text(code)
    before = chapter.locator("#cell-16 .schedule tr").first.locator("th").count()
    press(loop, "Run")
    expect(loop.locator(".live-status")).to_contain_text("Ran in")
    assert chapter.locator("#cell-16 .schedule tr").first.locator("th").count() > before


def test_on_a_phone_the_buttons_fit(chapter: Page) -> None:
    chapter.set_viewport_size({"width": 390, "height": 844})
    cell = chapter.locator(REQUEST)
    press(cell, "Edit")
    for name in ("Run", "Reset"):
        box = cell.get_by_role("button", name=name, exact=True).bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
    assert chapter.evaluate("document.documentElement.scrollWidth") <= 390


def test_every_key_reaches_the_editor_and_lines_are_indented_as_the_books(chapter: Page) -> None:
    cell = chapter.locator(MACHINE)
    write(chapter, cell, "")
    chapter.keyboard.type("for i in (1/2, 3):\nprint(i)")
    assert cell.locator(".cm-line").all_inner_texts() == ["for i in (1/2, 3):", "    print(i)"]
    chapter.keyboard.press("Control+Enter")
    expect(cell.locator(".cell_output")).to_contain_text("0.5")
