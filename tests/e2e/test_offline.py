"""The whole book in one file, from the built site: every chapter, every picture, answers at the end."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bs4 import BeautifulSoup

from book.linkcheck import pages
from book.offline.__main__ import main
from book.offline.parts import read_parts
from book.project import ROOT

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]  # the first test may build the site
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


@pytest.mark.weekly
def test_a_pdf_of_the_book_is_written(site: Path, tmp_path: Path) -> None:
    # In a process of its own: Playwright refuses to start another browser where that of the browser tests runs.
    command = [sys.executable, "-m", "book.offline", "pdf", "--site", str(site), "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    content = (tmp_path / "mlsys-lab.pdf").read_bytes()
    assert content.startswith(b"%PDF") and len(re.findall(rb"/Type /Page\b", content)) > 10 * len(chapters(site))
