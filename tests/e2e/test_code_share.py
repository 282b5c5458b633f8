"""Code that stands open takes at most a part of each chapter's page; the rest is prose, drawings and results."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from book.linkcheck import pages

pytestmark = pytest.mark.timeout(1800)  # the first test may build the site

MOST = 0.30
HEIGHTS = """() => {
  const height = (node) => node.getBoundingClientRect().height;
  const folded = (node) => node.closest("details:not([open])");
  const code = [...document.querySelectorAll("article .cell_input")].filter((node) => !folded(node));
  return [code.reduce((sum, node) => sum + height(node), 0), height(document.querySelector("article")), code.length];
}"""


@pytest.mark.weekly
def test_open_code_takes_at_most_a_part_of_a_page(page: Page, site: Path, site_url: str) -> None:
    shares = {}
    for path in pages(site):
        if path.parent.name == "chapters":
            page.goto(f"{site_url}chapters/{path.name}", wait_until="networkidle")
            page.evaluate("() => document.fonts.ready")
            code, whole, cells = page.evaluate(HEIGHTS)
            assert cells > 2 and whole > 5_000, path.stem
            shares[path.stem] = code / whole
            assert page.locator(".chapter-head").count() == page.locator(".chapter-foot").count() == 1, path.stem
            assert path.with_suffix(".ipynb").is_file()
    assert len(shares) >= 14
    assert {name: f"{share:.0%}" for name, share in shares.items() if share > MOST} == {}
