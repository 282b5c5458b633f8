"""Chapter 11, the planner's page and `mlsys-lab plan` give one answer to one question."""

from __future__ import annotations

import json
import re
from ast import literal_eval
from pathlib import Path

import pytest
from playwright.sync_api import Page

from mlsys_lab.cli import main
from mlsys_lab.hardware import device

pytestmark = pytest.mark.timeout(1800)  # the first test may build the site

RESERVE_GB = 0.1 * device("H100").memory_bytes / 1e9
"""The chapter plans with nine tenths of the memory."""


def glued(site: Path) -> dict[str, object]:
    """Values that chapter 11 puts into its text."""
    path = site.parent / "jupyter_execute" / "chapters" / "11-model-parallel.glue.json"
    values = json.loads(path.read_text("utf-8"))
    return {name: literal_eval(output["data"]["text/plain"]) for name, output in values.items()}


def test_page_command_and_chapter_agree(
    page: Page, site: Path, site_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chapter = glued(site)
    question = ["llama3-70b", "--devices", "512", "--batch", "512", "--sequence", "8192"]
    assert main(["plan", *question, "--reserve", f"{RESERVE_GB}", "--sequence-parallel", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    best = plans[0]
    layout = " × ".join(f"{name} {best['layout'][name]}" for name in ("data", "tensor", "pipeline", "context"))
    assert (layout, len(plans)) == (chapter["best_layout"], chapter["ways"])
    assert (f"{best['time_s']:.1f}", f"{best['memory']['total'] / 1e9:.0f}") == (chapter["best_s"], chapter["best_gb"])

    page.goto(f"{site_url}planner.html", wait_until="networkidle")
    for label, value in (("devices", 512), ("sequences", 512), ("tokens", 8192), ("GB kept free", RESERVE_GB)):
        field = page.get_by_label(re.compile(f"^{label}"))
        field.first.fill(str(value))
        field.first.press("Tab")
    page.get_by_text("What of the layout is given").click()
    page.get_by_label("sequence parallel").select_option("true")
    first = page.locator("mlsys-planner .plans li").first.inner_text()
    for name in ("data", "tensor", "pipeline", "context"):
        assert f"{best['layout'][name]} {name}" in first, first
    assert f"{len(plans)} layouts of 512 devices" in page.locator("mlsys-planner .detail").inner_text()
