"""What the site remembers of a reader: chapters read to the end, and where to continue."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.timeout(1800)  # the first test may build the site


def test_the_sidebar_has_the_chapters_numbers_and_marks_the_page(page: Page, site_url: str) -> None:
    page.goto(f"{site_url}chapters/13-serving.html")
    current = page.locator(".bd-sidebar-primary .current.active > a")
    expect(current).to_have_text("13 · Serving")
    expect(current).to_be_in_viewport()


def test_a_chapter_that_is_read_to_its_end_is_ticked_on_every_page(page: Page, site_url: str) -> None:
    page.goto(f"{site_url}chapters/12-inference.html")
    expect(page.locator(".chapter-done")).to_have_count(0)
    page.locator(".chapter-foot").scroll_into_view_if_needed()
    expect(page.locator(".chapter-done")).to_have_count(1)
    page.goto(f"{site_url}glossary.html")
    ticked = page.locator(".bd-sidebar-primary a", has=page.locator(".chapter-done"))
    expect(ticked).to_have_text("12 · Inference ✓")
    page.goto(f"{site_url}syllabus.html")
    expect(page.locator(".syllabus .chapter-done")).to_have_text(" ✓")


def test_after_a_chapter_the_front_page_leads_to_the_next_one(page: Page, site_url: str) -> None:
    page.goto(f"{site_url}chapters/06-triton.html")
    page.locator(".chapter-foot").scroll_into_view_if_needed()
    page.wait_for_function("localStorage.getItem('mlsys-lab:chapters').includes('07-transformer')")
    page.goto(site_url)
    expect(page.locator(".front-actions .front-primary")).to_have_text("Continue: Chapter 7 · Transformer arithmetic")


def test_the_front_page_leads_back_to_the_section_that_was_read(page: Page, site_url: str) -> None:
    page.goto(site_url)
    expect(page.locator(".front-actions a", has_text="Continue")).to_have_count(0)
    page.goto(f"{site_url}chapters/09-collectives.html")
    page.locator("#ring-all-reduce > h2, #ring-all-reduce > h3").scroll_into_view_if_needed()
    page.wait_for_function("localStorage.getItem('mlsys-lab:chapters').includes('ring-all-reduce')")
    page.goto(site_url)
    link = page.locator(".front-actions a", has_text="Continue")
    expect(link).to_have_text("Continue: Collectives · Ring all-reduce")
    link.click()
    expect(page).to_have_url(re.compile(r"chapters/09-collectives\.html#ring-all-reduce$"))


def test_a_milestone_is_ticked_from_the_keyboard_and_stays_ticked(page: Page, site_url: str) -> None:
    page.goto(f"{site_url}milestones.html")
    box = page.get_by_role("checkbox").nth(3)
    expect(page.get_by_role("checkbox")).to_have_count(8)
    box.focus()
    page.keyboard.press("Space")
    expect(page.locator(".milestones-progress")).to_have_text("1 of 8 reproduced")
    page.reload()
    expect(box).to_be_checked()
    expect(page.locator(".milestone-done")).to_have_id("zero")
    box.uncheck()
    expect(page.locator(".milestones-progress")).to_have_text("0 of 8 reproduced")
