"""What a first visit loads, and how far the page shifts meanwhile: counts, the same on a machine that is slow."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from book.linkcheck import pages
from book.weigh import Visit, table, weigh

pytestmark = pytest.mark.timeout(1800)  # the first test may build the site

MOST_BYTES = 1_000_000
MOST_REQUESTS = 45
MOST_SHIFT = 0.1  # "good" of web.dev/cls
MOST_BEFORE_PAINT = 120_000  # at 1.6 Mbit/s, Lighthouse's telephone, 0.6 s
MOST_BLOCKING = 1
MOST_SCRIPT = 30_000


@pytest.fixture(scope="module")
def weights(request: pytest.FixtureRequest, browser: Browser, site: Path, site_url: str) -> list[Visit]:
    """A first visit to the front page, to chapters, to the readings and to other long pages; weekly to all chapters."""
    chapters = [path.relative_to(site).as_posix() for path in pages(site) if path.parent.name == "chapters"]
    others = ("readings.html", "estimator.html", "planner.html", "glossary.html")
    every = 1 if request.config.getoption("weekly") else 4
    return [weigh(browser, site_url, name) for name in ("index.html", *chapters[::every], *others)]


def test_a_first_visit_loads_less_than_a_megabyte(weights: list[Visit]) -> None:
    assert len(weights) > 8 and all(one.sent["document"] > 0 for one in weights)
    assert [one.page for one in weights if one.sent_bytes > MOST_BYTES] == [], "\n" + table(weights)
    assert [one.page for one in weights if one.requests > MOST_REQUESTS] == [], "\n" + table(weights)


def test_pages_stay_where_they_are_while_they_load(weights: list[Visit]) -> None:
    assert [one.page for one in weights if one.shift > MOST_SHIFT] == [], "\n" + table(weights)


def test_a_page_is_painted_when_it_and_one_style_sheet_are_there(weights: list[Visit]) -> None:
    assert all(one.blocking for one in weights), "the browser says what blocks"
    assert [(one.page, one.blocking) for one in weights if len(one.blocking) > MOST_BLOCKING] == []
    assert [one.page for one in weights if one.first_paint_bytes > MOST_BEFORE_PAINT] == [], "\n" + table(weights)


def test_no_script_is_long(weights: list[Visit]) -> None:
    assert [(one.page, one.largest_script_bytes) for one in weights if one.largest_script_bytes > MOST_SCRIPT] == []


def test_the_site_brings_its_fonts(page: Page, site_url: str) -> None:
    """Latin text and code in the same faces on every machine, and of no other page's."""
    page.goto(f"{site_url}chapters/02-automatic-differentiation.html", wait_until="networkidle")
    loaded = page.evaluate("[...document.fonts].filter((one) => one.status === 'loaded').map((one) => one.family)")
    assert {"Inter", "JetBrains Mono"} <= {name.strip('"') for name in loaded}
    assert not any("Awesome" in name for name in loaded), "icons are masks in the style sheet"
