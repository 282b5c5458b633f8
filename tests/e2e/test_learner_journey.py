"""A learner's whole way: open the released lab in JupyterLab, type the answers, hand in, be graded, read feedback."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import jupytext
import nbformat
import pytest
from playwright.sync_api import Page, expect

from book import serve
from book.project import ROOT
from mlsys_checks import load_lab
from mlsys_grader.cli import main as grader
from tests.ports import held_port

LAB = "01-autograd"
CHECKS = load_lab("autograd").checks
SOURCE = jupytext.read(ROOT / "solutions" / LAB / f"{LAB}.py")
ANSWERS = {
    cell.metadata.nbgrader.grade_id: cell.source
    for cell in SOURCE.cells
    if cell.metadata.get("nbgrader", {}).get("solution")
}
RUN_S = 300
"""Longest that one cell may take."""

Workspace = tuple[Path, str]


@pytest.fixture(scope="module")
def jupyterlab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A learner's folder, and the address of the lab in the JupyterLab that `make start` would start there."""
    home = tmp_path_factory.mktemp("learner")
    assert LAB in serve.prepare_workspace(home / "workspace")
    token = secrets.token_urlsafe(8)
    with held_port() as port:
        with pytest.MonkeyPatch.context() as patch:  # else it opens what another JupyterLab of this user has open
            patch.setenv("JUPYTERLAB_WORKSPACES_DIR", str(home / "workspaces"))
            process = serve.start_jupyterlab(home / "workspace", port, token, home / "jupyterlab.log")
        yield home, f"http://{serve.HOST}:{port}/lab/tree/{LAB}/{LAB}.ipynb?token={token}"
        serve.stop(process)


def type_and_run(page: Page, notebook: Path) -> nbformat.NotebookNode:
    """Cell by cell: type the answer where the lab asks for one, run it, wait for it. Returns the saved notebook."""
    active = page.locator(".jp-Notebook .jp-Cell.jp-mod-active")
    prompt = active.locator(".jp-InputPrompt")
    page.locator(".jp-Notebook .jp-Cell").first.locator(".jp-InputPrompt").click()
    page.keyboard.press("Escape")
    cells = nbformat.read(notebook, as_version=4).cells
    for number, cell in enumerate(cells):
        expect(active).to_have_attribute("data-windowed-list-index", str(number))
        answer = ANSWERS.get(cell.metadata.get("nbgrader", {}).get("grade_id"))
        if answer is not None:
            page.keyboard.press("Enter")
            expect(active.locator(".cm-content")).to_be_focused()
            page.keyboard.press("Control+A")
            page.keyboard.insert_text(answer)
        if cell.cell_type == "code":
            page.keyboard.press("Control+Enter")
            expect(prompt).to_have_text(re.compile(r"\[\d+\]"), timeout=RUN_S * 1000)
        page.keyboard.press("Escape")
        expect(page.locator(".jp-Notebook")).to_have_class(re.compile("jp-mod-commandMode"))
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Control+s")
    expect(page.locator(".lm-TabBar-tab.jp-mod-dirty")).to_have_count(0)
    return nbformat.read(notebook, as_version=4)


def verdicts(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """What each check's card says, by the check's name."""
    said = {}
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            texts = [output.data["text/plain"] for output in cell.outputs if output.output_type == "display_data"]
            said[cell.metadata.nbgrader.grade_id] = " ".join(texts)
    return said


def ground_shows_through_the_figures(page: Page) -> None:
    """In JupyterLab's dark theme, nothing white lies behind a figure, and its text is not black."""
    page.get_by_role("menuitem", name="Settings").first.click()
    page.locator(".lm-Menu-itemLabel").get_by_text("Theme", exact=True).click()
    page.locator(".lm-Menu-itemLabel").get_by_text("JupyterLab Dark", exact=True).click()
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    figure = page.locator(".jp-Notebook .js-plotly-plot").last
    figure.scroll_into_view_if_needed()
    look = "(node, property) => getComputedStyle(node)[property]"
    assert figure.locator(".main-svg").first.evaluate(look, "backgroundColor") == "rgba(0, 0, 0, 0)"
    assert figure.locator(".bg").first.evaluate(look, "fillOpacity") == "0"
    assert figure.locator(".xtick text").first.evaluate(look, "fill") == "rgb(117, 123, 131)"


@pytest.mark.sandbox
def test_from_the_released_notebook_to_the_feedback_page(page: Page, jupyterlab: Workspace, request) -> None:
    home, address = jupyterlab
    notebook = home / "workspace" / LAB / f"{LAB}.ipynb"
    pictures = request.config.getoption("--pictures")

    page.goto(address)
    page.locator(".jp-Notebook").wait_for()
    expect(page.locator("#jp-main-statusbar")).to_contain_text("Python 3 (ipykernel) | Idle")
    expect(page.get_by_text("Create Assignment")).to_have_count(0)  # nbgrader's panels are the instructor's
    said = verdicts(type_and_run(page, notebook))
    assert {name: text.split(":")[0] for name, text in said.items()} == {c.name: "✓ passed" for c in CHECKS}
    last_card = page.locator(".jp-Notebook [role=status]", has_text="passed").last
    last_card.scroll_into_view_if_needed()
    assert last_card.evaluate("card => getComputedStyle(card).borderLeftColor") == "rgb(46, 158, 91)"
    if pictures:
        page.screenshot(path=Path(pictures) / "lab.png")
    ground_shows_through_the_figures(page)

    accepted = subprocess.run(
        [ROOT / ".venv/bin/mlsys-lab", "check", "autograd"],
        cwd=home / "workspace", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr

    (home / "hand-ins" / "ada").mkdir(parents=True)
    shutil.copy(notebook, home / "hand-ins" / "ada")
    course = ["--course", str(home / "course")]
    assert grader([*course, "collect", str(home / "hand-ins"), "--lab", "autograd"]) == 0
    assert grader([*course, "grade", "autograd"]) == 0
    page.goto((home / "course" / "feedback" / "ada" / LAB / f"{LAB}.html").as_uri())
    expect(page.locator(".sum")).to_have_text(re.compile(r"^100 of 100 points$"))
    expect(page.locator("article")).to_have_count(len(CHECKS))
    expect(page.locator("article.lost")).to_have_count(0)
    if pictures:
        page.screenshot(path=Path(pictures) / "feedback.png")
