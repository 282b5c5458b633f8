"""The search page's script in a browser, on a small index: what is found, in which order, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

SCRIPT = Path(__file__).parents[2] / "book" / "_static" / "search.js"
LONG = "Nothing of note happens here. " * 20
INDEX = {
    "pages": {
        "glossary": "Glossary",
        "chapters/05-cuda": "Chapter 5 · CUDA",
        "chapters/08-laws": "Chapter 8 · Laws",
        "changelog": "Changelog",
        "readings": "Reading list",
    },
    "hits": [
        ["changelog", "", "Changelog", "Warps, warps, warps and quantisation, optimisers, colour.", "section"],
        ["chapters/05-cuda", "", "CUDA", "Threads of a warp run in step.", "section"],
        ["chapters/05-cuda", "tiles", "Tiles of a matrix", f"{LONG}Each warp loads a tile. {LONG}", "section"],
        ["glossary", "term-warp", "warp", "Threads of a block that run in step, 32 on an NVIDIA GPU.", "term"],
        ["glossary", "term-quantisation", "quantisation", "Fewer bits for a number.", "term"],
        ["chapters/08-laws", "adam", "What the optimizer keeps", "Quantized states; the color of noise.", "section"],
        ["readings", "reading-warp", "Warp scheduling", "A. Author · On warps.", "reading"],
        ["chapters/08-laws", "cfg", "<b>Markup</b> & more", "Gökçe writes <script>.", "section"],
    ],
}


@pytest.fixture(scope="module")
def search(browser: Browser) -> Iterator[Page]:
    """The script at work in one page, which all tests share."""
    context = browser.new_context()
    page = context.new_page()
    page.route("http://search.test/**", lambda route: route.fulfill(content_type="text/html", body=html()))
    page.goto("http://search.test/search.html?q=warp")
    yield page
    context.close()


def html() -> str:
    index = json.dumps(INDEX).replace("</", "<\\/")
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Search</title>
    <div class="bd-search-container"><input name="q" aria-label="Search"><div id="search-results"></div></div>
    <script>window.searchIndex = {index};</script>
    <script>{SCRIPT.read_text("utf-8")}</script></html>"""


def found(page: Page, query: str) -> list[str]:
    page.locator("input").fill(query)
    links = page.locator(".search-hits a")
    return links.evaluate_all("links => links.map(link => link.getAttribute('href'))")


def test_the_address_holds_the_query(search: Page) -> None:
    expect(search.locator("input")).to_have_value("warp")
    assert search.locator(".search-hits li").count() == 5
    found(search, "tile size")
    expect(search).to_have_url("http://search.test/search.html?q=tile%20size")


def test_a_definition_comes_first_and_whole_and_the_changelog_last(search: Page) -> None:
    assert found(search, "warp") == [
        "glossary.html#term-warp",
        "readings.html#reading-warp",
        "chapters/05-cuda.html",
        "chapters/05-cuda.html#tiles",
        "changelog.html",
    ]
    first = search.locator(".search-hits li").first
    expect(first.locator(".search-where")).to_have_text("Glossary")
    expect(first.locator(".search-text")).to_have_text("Threads of a block that run in step, 32 on an NVIDIA GPU.")
    expect(first.locator("a mark")).to_have_text("warp")


def test_a_section_is_a_hit_with_the_words_around_what_was_found(search: Page) -> None:
    assert found(search, "warp loads")[0] == "chapters/05-cuda.html#tiles"
    text = search.locator(".search-hits li").first.locator(".search-text").inner_text()
    assert "Each warp loads a tile." in text and text.startswith("… ") and text.endswith(" …") and len(text) < 260
    expect(search.locator(".search-where").first).to_have_text("Chapter 5 · CUDA")


@pytest.mark.parametrize(
    "spellings",
    [
        ("quantisation", "quantization", "quantised", "Quantize", "QUANTIZING"),
        ("optimiser", "optimizer", "optimisers", "optimize"),
        ("colour", "color"),
        ("gökçe", "gokce", "GÖKÇE"),
        ("load", "loads", "loaded", "loading"),
        ("author", "the author", "what is an author?"),
        ("scheduler", "schedules", "scheduling"),
    ],
    ids=lambda spellings: spellings[0],
)
def test_every_spelling_finds_the_same(search: Page, spellings: tuple[str, ...]) -> None:
    everything = [set(found(search, spelling)) for spelling in spellings]
    assert everything[0] and all(one == everything[0] for one in everything)


def test_hits_have_all_words_or_else_some(search: Page) -> None:
    assert found(search, "states noise") == ["chapters/08-laws.html#adam"]
    assert set(found(search, "states bits")) == {"chapters/08-laws.html#adam", "glossary.html#term-quantisation"}


def test_what_is_found_is_said(search: Page) -> None:
    found(search, "states noise")
    expect(search.get_by_role("status")).to_have_text("1 place found.")
    assert found(search, "nosuchword") == []
    expect(search.get_by_role("status")).to_have_text("Nothing found for “nosuchword”.")
    assert found(search, "") == []
    expect(search.get_by_role("status")).to_have_text("")
    assert found(search, "?!") == []


def test_markup_in_the_index_stays_text(search: Page) -> None:
    found(search, "markup")
    expect(search.locator(".search-hits a")).to_have_text("<b>Markup</b> & more")
    expect(search.locator(".search-text")).to_have_text("Gökçe writes <script>.")
