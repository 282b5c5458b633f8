"""What search engines and link previews read of a page: a description and a card for each, and a sitemap."""

from __future__ import annotations

import re
import sys
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

BOOK = Path(__file__).parents[2] / "book"
sys.path.insert(0, str(BOOK / "_ext"))

import page_meta  # noqa: E402  # a module of the book's extension folder

BASE = "https://example.org/course/"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small site with a chapter, a lab and another page."""
    folder = tmp_path_factory.mktemp("site")
    source = folder / "book"
    for page, text in {
        "chapters/05-cuda": "# CUDA\n\nA chapter.",
        "labs/01-autograd": "# Autograd\n\nA lab.",
        "plain": f'# Plain & simple\n\n## Part\n\nSay "x < y" and $n$ {"more " * 40}.',
        "index": "# Book\n\n```{toctree}\n:hidden:\n:glob:\n\n*/*\nplain\n```",
    }.items():
        path = source / f"{page}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    warnings = StringIO()
    with patch_docutils(str(source)), docutils_namespace():
        Sphinx(
            srcdir=str(source),
            confdir=None,
            outdir=str(folder / "html"),
            doctreedir=str(folder / "doctrees"),
            buildername="html",
            confoverrides={
                "extensions": ["myst_parser", "page_meta"],
                "myst_enable_extensions": ["dollarmath"],
                "html_baseurl": BASE,
                "project": "The course",
            },
            status=None,
            warning=warnings,
        ).build()
    assert warnings.getvalue() == ""
    return folder / "html"


def tag(site: Path, page: str, name: str) -> str:
    """What the one tag of this name in a page's head says, as it stands."""
    head = (site / f"{page}.html").read_text("utf-8").partition("</head>")[0]
    (found,) = re.findall(f'<meta (?:name|property)="{name}" content="([^"]*)"', head)
    return str(found)


def test_every_page_is_described(site: Path) -> None:
    chapter = page_meta.readings.load_syllabus().chapter("05")
    assert chapter and tag(site, "chapters/05-cuda", "description") == chapter.about
    lab = page_meta.read_lab(page_meta.LABS / "01-autograd")
    assert tag(site, "labs/01-autograd", "description") == lab.summary
    assert tag(site, "index", "description").startswith("An open textbook and lab course")
    said = tag(site, "plain", "description")
    assert said.startswith("Say “x &lt; y” and n more") and said.endswith("…") and len(said) <= 170


def test_a_card_names_the_page_and_its_public_address(site: Path) -> None:
    assert tag(site, "plain", "og:title") == "Plain &amp; simple"
    assert tag(site, "chapters/05-cuda", "og:url") == f"{BASE}chapters/05-cuda.html"
    assert tag(site, "chapters/05-cuda", "og:description") == tag(site, "chapters/05-cuda", "description")
    assert tag(site, "plain", "og:site_name") == "The course"
    picture = tag(site, "plain", "og:image")
    assert picture.startswith(BASE) and (BOOK / picture.removeprefix(BASE)).is_file()


def test_pages_name_their_canonical_address(site: Path) -> None:
    assert (
        f'<link rel="canonical" href="{BASE}chapters/05-cuda.html"' in (site / "chapters" / "05-cuda.html").read_text()
    )


def test_the_sitemap_lists_every_page_once(site: Path) -> None:
    found = [place.text for place in ElementTree.parse(site / "sitemap.xml").iter() if place.tag.endswith("}loc")]
    pages = ("chapters/05-cuda", "index", "labs/01-autograd", "plain")
    assert found == [f"{BASE}{page}.html" for page in pages]
