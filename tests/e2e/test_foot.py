"""The foot of every page: its licences, and a link to edit the file of this repository that the page is made from."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page

from book.linkcheck import pages, read_page
from book.project import ROOT, read_address

WITHOUT_SOURCE = {"404.html", "genindex.html", "search.html"}


def paths(page: Path, kind: str) -> set[str]:
    """The files of the repository that a page's links of this kind (blob, edit) lead to."""
    start = f"{read_address().repository}/{kind}/main/"
    return {link.removeprefix(start) for link in read_page(page).links if link.startswith(start)}


def test_every_page_can_be_edited_where_it_is_made(site: Path) -> None:
    edited = {page.relative_to(site).as_posix(): paths(page, "edit") for page in pages(site)}
    assert {name for name, sources in edited.items() if not sources} == WITHOUT_SOURCE
    sources = {name: found.pop() for name, found in edited.items() if len(found) == 1}
    assert set(sources) == set(edited) - WITHOUT_SOURCE, "the header's menu and the foot lead to one file"
    assert [source for source in sources.values() if not (ROOT / source).is_file()] == []
    assert sources["chapters/05-cuda.html"] == "book/chapters/05-cuda.md"
    assert sources["labs/01-autograd.html"] == "solutions/01-autograd/01-autograd.py"
    assert sources["readings.html"] == "book/data/readings.yml"
    assert not any("_build" in source or source.startswith("labs/") for source in sources.values())


def test_every_page_names_its_licences(site: Path) -> None:
    for page in pages(site):
        foot = re.search(r'<div class="extra_footer">(.*?)</div>', page.read_text(encoding="utf-8"), re.DOTALL)
        assert foot and "CC BY 4.0" in foot[1] and "MIT" in foot[1], page
        assert {"LICENSE", "book/LICENSE"} <= paths(page, "blob")
    assert (ROOT / "LICENSE").is_file() and (ROOT / "book/LICENSE").is_file()


def test_the_link_can_be_followed_on_a_telephone(page: Page, site_url: str) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    for name in ("index", "chapters/01-introduction", "labs/01-autograd"):
        page.goto(f"{site_url}{name}.html")
        link = page.locator(".edit-page")
        link.scroll_into_view_if_needed()
        box = link.bounding_box()
        assert link.is_visible() and box and box["x"] >= 0 and box["x"] + box["width"] <= 390
