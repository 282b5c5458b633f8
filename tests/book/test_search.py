"""The search in a browser, on a small index: what is found, in which groups and order, and how it is shown."""

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
        ["chapters/08-laws", "guidance", "Classifier-free guidance", "Two evaluations a step.", "section"],
        ["readings", "reading-warp", "Warp scheduling", "A. Author · On warps.", "reading"],
        ["chapters/08-laws", "cfg", "<b>Markup</b> & more", "Gökçe writes <script>.", "section"],
    ],
}


@pytest.fixture(scope="module")
def search(browser: Browser) -> Iterator[Page]:
    """The script at work in one page, which all tests share."""
    context = browser.new_context()
    page = context.new_page()
    page.route("**/search.html*", lambda route: route.fulfill(content_type="text/html", body=HTML))
    page.route(
        "**/search.js", lambda route: route.fulfill(content_type="text/javascript", body=SCRIPT.read_text("utf-8"))
    )
    page.route(
        "**/search-index.json", lambda route: route.fulfill(content_type="application/json", body=json.dumps(INDEX))
    )
    page.goto("http://search.test/search.html?q=warp")
    yield page
    context.close()


HTML = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Search</title>
<div><input name="q" aria-label="Search"><div id="search-results"></div></div>
<script type="module">
  import { attach } from "./_static/search.js";
  const field = document.querySelector("input");
  field.value = new URLSearchParams(location.search).get("q");
  await attach(field, document.getElementById("search-results"), { shown: 3, keepAddress: true });
  window.show = async (query) => {
    field.value = query;
    await new Promise((done) => {
      const results = document.getElementById("search-results");
      new MutationObserver(done).observe(results, { childList: true });
      field.dispatchEvent(new Event("input"));
    });
  };
</script></html>"""


def found(page: Page, query: str) -> list[str]:
    """Addresses of all hits of a query, group by group."""
    page.wait_for_function("window.show")
    page.evaluate("query => window.show(query)", query)
    addresses = page.locator(".search-hits a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    return [address.removeprefix("http://search.test/") for address in addresses]


def test_the_address_holds_the_query(search: Page) -> None:
    expect(search.locator("input")).to_have_value("warp")
    expect(search.locator(".search-hits li")).to_have_count(4)
    found(search, "tile size")
    expect(search).to_have_url("http://search.test/search.html?q=tile%20size")


def test_chapters_come_first_then_whole_definitions_and_readings_and_no_changelog(search: Page) -> None:
    assert found(search, "warp") == [
        "chapters/05-cuda.html",
        "chapters/05-cuda.html#tiles",
        "glossary.html#term-warp",
        "readings.html#reading-warp",
    ]
    expect(search.locator(".search-group")).to_have_text(["Chapters", "Glossary", "Readings"])
    term = search.locator(".search-hits li").nth(2)
    expect(term.locator(".search-text")).to_have_text("Threads of a block that run in step, 32 on an NVIDIA GPU.")
    expect(term.locator("a mark")).to_have_text("warp")


def test_a_title_that_is_the_query_comes_before_sections_that_mention_it_more(search: Page) -> None:
    assert found(search, "what the optimizer keeps")[0] == "chapters/08-laws.html#adam"


def test_another_name_of_a_thing_finds_it(search: Page) -> None:
    assert found(search, "cfg") == found(search, "classifier-free guidance") == ["chapters/08-laws.html#guidance"]


def test_a_misspelt_term_gets_a_suggestion(search: Page) -> None:
    assert found(search, "quantsation") == []
    expect(search.get_by_role("status").locator("a")).to_have_text("quantisation")


def test_a_section_is_a_hit_with_the_words_around_what_was_found(search: Page) -> None:
    assert found(search, "warp loads")[0] == "chapters/05-cuda.html#tiles"
    text = search.locator(".search-hits li").first.locator(".search-text").inner_text()
    assert "Each warp loads a tile." in text and text.startswith("… ") and text.endswith(" …") and len(text) < 220
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
