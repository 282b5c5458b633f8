"""What a first visit loads, and how far the page shifts meanwhile: counts, the same on a machine that is slow."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from book.linkcheck import pages
from book.weigh import Visit, table, weigh

pytestmark = pytest.mark.timeout(1800)  # the first test may build the site

MOST_BYTES = 1_000_000
MOST_REQUESTS = 45
MOST_SHIFT = 0.1  # "good" of web.dev/cls


@pytest.fixture(scope="module")
def weights(browser: Browser, site: Path, site_url: str) -> list[Visit]:
    """A first visit to the front page, to each chapter and to the readings."""
    chapters = [path.relative_to(site).as_posix() for path in pages(site) if path.parent.name == "chapters"]
    return [weigh(browser, site_url, name) for name in ("index.html", *chapters, "readings.html")]


def test_a_first_visit_loads_less_than_a_megabyte(weights: list[Visit]) -> None:
    assert len(weights) > 10 and all(one.sent["document"] > 0 for one in weights)
    assert [one.page for one in weights if one.sent_bytes > MOST_BYTES] == [], "\n" + table(weights)
    assert [one.page for one in weights if one.requests > MOST_REQUESTS] == [], "\n" + table(weights)


def test_chapters_and_the_front_page_stay_where_they_are_while_they_load(weights: list[Visit]) -> None:
    shifted = [one.page for one in weights if one.shift > MOST_SHIFT and one.page != "readings.html"]
    assert shifted == [], "\n" + table(weights)
