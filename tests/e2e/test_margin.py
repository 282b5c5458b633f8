"""The right-hand side of a wide screen: notes on terms and works next to their lines, and the section at hand."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.timeout(1800)  # the first test may build the site

CHAPTER = "chapters/07-transformer-arithmetic.html"
OVERLAPS = """() => {
  const boxes = [...document.querySelectorAll(".margin-note")].map((note) => note.getBoundingClientRect());
  const article = document.querySelector(".bd-article").getBoundingClientRect();
  const below = boxes.filter((box, i) => i && box.top < boxes[i - 1].bottom);
  return { count: boxes.length, below: below.length, over: boxes.filter((box) => box.left < article.right - 1).length };
}"""
CUT = """() => [...document.querySelectorAll("div.cell_input pre")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent.slice(0, 60))"""


@pytest.mark.parametrize("width", [1200, 1280, 1600])
def test_terms_and_works_are_explained_in_the_margin(page: Page, site_url: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(site_url + CHAPTER)
    expect(page.locator(".margin-note", has_text="FLOPs done per byte moved")).to_be_attached()
    expect(page.locator(".margin-note", has_text="FlashAttention: fast and memory-efficient")).to_have_count(1)
    found = page.evaluate(OVERLAPS)
    assert found["count"] > 20 and found["below"] == found["over"] == 0


def test_a_narrow_page_has_no_notes(page: Page, site_url: str) -> None:
    page.set_viewport_size({"width": 1100, "height": 900})
    page.goto(site_url + CHAPTER, wait_until="networkidle")
    assert page.locator(".margin-note").count() == 0


def test_the_contents_mark_the_section_and_give_way_to_notes(page: Page, site_url: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(site_url + CHAPTER)
    entries = page.locator("#pst-page-toc-nav li")
    expect(page.locator("#pst-page-toc-nav a", has_text="In practice")).to_be_visible()
    page.locator("#counting-parameters > h2").evaluate("(one) => one.scrollIntoView()")
    current = page.locator("#pst-page-toc-nav a[aria-current]")
    expect(current).to_have_text("Counting parameters")
    expect(entries.locator("visible=true")).to_have_count(1)
    page.locator(".bd-sidebar-secondary").hover()
    expect(page.locator("#pst-page-toc-nav a", has_text="In practice")).to_be_visible()


@pytest.mark.parametrize("lab", ["01-autograd", "04-triton", "09-model-parallel", "12-diffusion"])
def test_code_of_a_lab_is_not_cut_at_1280_pixels(page: Page, site_url: str, lab: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{site_url}labs/{lab}.html")
    assert page.evaluate(CUT) == []
