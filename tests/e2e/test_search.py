"""Searching the built site: the index leads to places that exist, and what readers ask for comes first."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from book.linkcheck import read_page

pytestmark = pytest.mark.timeout(1800)  # the first test may build the site

FIRST = {
    "warp": "glossary.html#term-warp",
    "memory wall": "glossary.html#term-memory-wall",
    "quantisation": None,
    "quantization": None,
    "optimizer states": None,
    "lab": None,
    "chapter": None,
    "flash attention": None,
    "reading list": "readings.html",
}
"""Queries, and for some the place that must come first."""


@pytest.fixture(scope="module")
def index(site: Path) -> dict[str, Any]:
    """What the search page reads."""
    text = (site / "search-index.js").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text.removeprefix("window.searchIndex = ").removesuffix(";\n"))
    return loaded


def test_every_hit_leads_to_a_place_that_exists(site: Path, index: dict[str, Any]) -> None:
    kinds = {kind for *_, kind in index["hits"]}
    assert kinds == {"section", "term", "reading"} and len(index["hits"]) > 500
    for page, anchor, title, _, _ in index["hits"]:
        assert title and page in index["pages"]
        assert not anchor or anchor in read_page(site / f"{page}.html").fragments, (page, anchor)


def test_terms_come_with_definitions_and_nothing_holds_tex(index: dict[str, Any]) -> None:
    assert all(text for *_, text, kind in index["hits"] if kind == "term")
    tex = re.compile(r"\\(?:[a-zA-Z]{2,}|[({\[])|\$[^$ ]+\$|[_^]\{")
    assert [hit[:3] for hit in index["hits"] if tex.search(f"{hit[2]} {hit[3]}")] == []


def test_what_readers_ask_for_comes_first_and_the_changelog_never(page: Page, site_url: str) -> None:
    page.goto(f"{site_url}search.html?q=warp")
    field = page.locator(".bd-search-container input")
    expect(field).to_have_value("warp")
    for query, place in FIRST.items():
        field.fill(query)
        first = page.locator(".search-hits a").first
        expect(first).to_be_visible()
        found = first.get_attribute("href")
        assert found and not found.startswith("changelog") and found == (place or found), query
    assert (
        page.evaluate("performance.getEntriesByType('resource').filter(({name}) => name.endsWith('.html')).length") == 0
    )
