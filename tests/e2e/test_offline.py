"""The whole book in one file, from the built site: every chapter, every picture, answers at the end."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import Browser
from pypdf import PdfReader
from pypdf.generic import Destination

from book.linkcheck import pages
from book.offline.__main__ import main
from book.offline.parts import read_parts
from book.offline.pdf import read_page_numbers
from book.project import ROOT
from tests.book.test_offline import EPUBCHECK

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]  # the first test may build the site
FOOT = 100
"""Points from a page's edge: the margin, a heading and a line of text below it."""
WIDER = """() => {
  const edge = document.querySelector(".bd-article").getBoundingClientRect().right + 2;
  return [...document.querySelectorAll(".bd-article :is(table, svg, pre, img, mjx-container)")]
    .filter((one) => one.offsetParent !== null && one.getBoundingClientRect().right > edge)
    .map((one) => one.textContent.slice(0, 40));
}"""
SHOWN = ("figure.drawn", "div.chart", "mjx-container", "[class~=cell_output] table", "div.highlight")
SVG = "{http://www.w3.org/2000/svg}svg"


def chapters(site: Path) -> list[Path]:
    """Pages of the chapters."""
    return [page for page in pages(site) if page.parent.name == "chapters"]


@pytest.mark.weekly
def test_the_parts_are_all_chapters_with_all_their_pictures_and_formulas(site: Path) -> None:
    parts = {part.name: part.article for part in read_parts(site, "https://example.org/")}
    assert list(parts) == [*(page.stem for page in chapters(site)), "answers", "glossary", "references"]
    written = [BeautifulSoup(page.read_text("utf-8"), "html.parser") for page in chapters(site)]
    bound = [parts[page.stem] for page in chapters(site)] + [parts["answers"]]
    for kind in SHOWN:
        wanted, found = (sum(len(one.select(kind)) for one in some) for some in (written, bound))
        assert wanted == found > 0, kind
    assert len(parts["answers"].select("h3")) > 50


@pytest.mark.weekly
def test_an_epub_of_the_book_is_written(site: Path, tmp_path: Path) -> None:
    assert main(["epub", "--site", str(site), "--out", str(tmp_path)]) == 0
    with zipfile.ZipFile(tmp_path / "mlsys-lab.epub") as book:
        for page in chapters(site):
            drawn = list(ElementTree.fromstring(book.read(f"book/{page.stem}.xhtml")).iter(SVG))
            assert len(drawn) >= page.read_text("utf-8").count('<figure class="drawn'), page.name
    check = subprocess.run([*EPUBCHECK, tmp_path / "mlsys-lab.epub"], capture_output=True, text=True, check=False)
    assert check.returncode == 0 and "0 errors / 0 warnings" in check.stdout, check.stderr + check.stdout


@pytest.mark.weekly
def test_a_pdf_of_the_book_is_written(site: Path, tmp_path: Path) -> None:
    # In a process of its own: Playwright refuses to start another browser where that of the browser tests runs.
    command = [sys.executable, "-m", "book.offline", "pdf", "--site", str(site), "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    book = PdfReader(tmp_path / "mlsys-lab.pdf")
    assert len(book.pages) > 10 * len(chapters(site))
    pages_of = read_page_numbers((tmp_path / "mlsys-lab.pdf").read_bytes())
    contents = "\n".join(page.extract_text() for page in book.pages[1 : pages_of[chapters(site)[0].stem] - 1])
    for page in chapters(site):
        assert re.search(rf"^\d+ .* {pages_of[page.stem]}$", contents, re.M), page.stem
    headings = [one for one in flatten(book.outline) if one.top is not None]
    assert len(headings) > 300
    assert [(one.title, book.get_destination_page_number(one) + 1) for one in headings if one.top < FOOT] == []


def flatten(outline: list[Any]) -> Iterator[Destination]:
    """Entries of an outline, of all levels."""
    for one in outline:
        if isinstance(one, list):
            yield from flatten(one)
        else:
            yield one


@pytest.mark.parametrize("page", ["10-data-parallel", "07-transformer-arithmetic", "13-serving"])
def test_nothing_of_a_chapter_is_wider_than_paper(browser: Browser, site_url: str, page: str) -> None:
    context = browser.new_context(viewport={"width": 642, "height": 900})  # A4 without its margins, in CSS pixels
    opened = context.new_page()
    opened.emulate_media(media="print")
    opened.goto(f"{site_url}chapters/{page}.html", wait_until="networkidle")
    assert opened.evaluate(WIDER) == []
    context.close()
