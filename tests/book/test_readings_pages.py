"""The pages of the reading list: complete without a script, linked, rebuilt when the data changes."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

BOOK = Path(__file__).parents[2] / "book"
sys.path.insert(0, str(BOOK / "_ext"))

import milestone_path  # noqa: E402  # modules of the book's extension folder
import readings  # noqa: E402
import readings_html  # noqa: E402
import readings_map  # noqa: E402

from mlsys_lab.capstone.milestones import MILESTONES  # noqa: E402

LIST = readings.load()
SYLLABUS = readings.load_syllabus()
VOID = {"input", "br", "img", "hr", "meta", "link"}


class Tree(HTMLParser):
    """Checks that tags nest, and collects ids, links and rows."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.links += [values["href"] or ""] if "href" in values else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_path_holds_every_milestone_without_a_script_and_links_its_lab_and_chapter() -> None:
    html = milestone_path.milestone_path(SYLLABUS, lambda page: f"{page}.html")
    tree = Tree(html)
    assert tree.ids == [one.name for one in MILESTONES]
    topics = [link.split("-", 1)[1].removesuffix(".html") for link in tree.links if link.startswith("labs/")]
    assert topics == [
        "autograd", "collectives", "autograd", "data-parallel", "scaling-laws", "triton", "serving", "kv-cache",
    ]  # fmt: skip
    assert sum(link.startswith("chapters/") for link in tree.links) == len(MILESTONES)
    shown = unescape(html)
    for one in MILESTONES:
        for said in (f"{one.year}</p>", one.title, one.source, one.scope, f"mlsys-lab milestones {one.name}<"):
            assert said in shown


def test_the_table_holds_everything_without_a_script() -> None:
    html = readings_html.table(LIST, SYLLABUS)
    tree = Tree(html)
    shown = [id.removeprefix("reading-") for id in tree.ids if id.startswith("reading-")]
    assert shown == [reading.id for reading in LIST]
    assert {link[1:] for link in tree.links if link.startswith("#")} <= set(tree.ids), (
        "links lead somewhere as they stand"
    )
    assert {reading.url or reading.look for reading in LIST} <= set(tree.links)
    assert html.count("our addition") == html.count('data-ours="1"') == sum(reading.is_ours for reading in LIST)
    for said in ("\u00a0· 2017</p>", "· kept up to date</p>", "· year not known</p>"):
        assert said in html
    assert html.count("<tr id=") == len(LIST)
    assert html.count('scope="rowgroup"') == len(SYLLABUS.chapters)
    assert '<form class="readings-filters pst-js-only"' in html, "a filter that cannot work is not shown"
    assert "<script" not in html and html.count('class="readings-check pst-js-only"') == len(LIST)


def test_read_next_is_the_chapter_in_order() -> None:
    chapter = SYLLABUS.chapter("02")
    assert chapter
    html = readings_html.read_next(LIST, chapter, "../readings.html")
    Tree(html)
    shown = re.findall(r'<li data-id="([^"]+)"', html)
    assert shown == [reading.id for reading in readings.choose_next(LIST, chapter)]
    assert f"All {len(readings.for_chapter(LIST, chapter.topic))} readings for this chapter</a>" in html
    assert shown[:3] == ["micrograd", "clark-gradient-notes", "grosse-autodiff"]
    assert "Reverse mode in about a hundred lines" in html and "45 min" in html and "beginner" in html
    assert "Andrej Karpathy\u00a0· 2020" in html
    assert '<a href="../readings.html#chapter=automatic-differentiation">' in html


def test_the_map_links_only_pages_that_exist_and_marks_the_rest() -> None:
    here = {"readings", "chapters/02-automatic-differentiation"}
    html = readings_map.syllabus_map(LIST, SYLLABUS, lambda page: f"{page}.html" if page in here else None)
    tree = Tree(html)
    assert {link for link in tree.links if link.startswith(("chapters", "labs"))} == {
        "chapters/02-automatic-differentiation.html"
    }
    labs = sum(len(chapter.labs) for chapter in SYLLABUS.chapters)
    assert f"Ready: 1 of 19 chapters, 0 of {labs} labs · {len(LIST)} readings" in html
    assert html.count("In preparation") == 15
    assert html.count("Later edition") == 3
    assert html.count("data-progress=") == len(SYLLABUS.chapters) + 1


def test_markup_in_the_data_stays_text() -> None:
    odd = readings.Reading(
        id="odd",
        title="<b>A & B</b>",
        authors=('"Q"',),
        year=2020,
        url="https://example.org/?a=1&b=%22",
        look="",
        also=(),
        kind="blog",
        language="en",
        level="beginner",
        minutes=5,
        star=True,
        topics=("cuda",),
        chapters=("cuda",),
        seeds=("zh-mlsys",),
        why="x < y > z",
        note="<script>",
    )
    html = readings_html.table((odd,), SYLLABUS)
    Tree(html)
    assert "<b>" not in html and "<script>" not in html
    assert "&lt;b&gt;A &amp; B&lt;/b&gt;" in html and "a=1&amp;b=%22" in html


def test_load_label_counts_long_works_apart() -> None:
    by_id = {reading.id: reading for reading in LIST}
    assert readings_html.load_label([by_id["micrograd"]]) == "1 reading · 45 min"
    assert (
        readings_html.load_label([by_id["micrograd"], by_id["stanford-cs149"]])
        == "1 reading · 45 min + 1 course or book"
    )
    assert readings_html.load_label([by_id["stanford-cs149"], by_id["mlsysbook"]]) == "2 courses and books"


Build = Callable[[], tuple[set[str], str]]


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small book that uses all three directives, with its own copy of the data."""
    source = tmp_path / "book"
    shutil.copytree(BOOK / "data", source / "data", ignore=shutil.ignore_patterns("measurements"))
    for name in ("READINGS", "SYLLABUS"):
        monkeypatch.setattr(readings, name, source / "data" / getattr(readings, name).name)
    for name in ("readings", "syllabus"):
        shutil.copy(BOOK / f"{name}.md", source)
    (source / "chapters").mkdir()
    (source / "chapters" / "02-automatic-differentiation.md").write_text("# AD\n\n```{readings} 02\n```\n")
    (source / "plain.md").write_text("# Plain\n")
    for name in ("estimator", "planner", "milestones"):  # the syllabus leads there
        (source / f"{name}.md").write_text(f"# {name.capitalize()}\n")
    (source / "index.md").write_text("# Book\n\n```{toctree}\n:glob:\n\n*\nchapters/*\n```\n")
    return source


@pytest.fixture
def build(book: Path, tmp_path: Path) -> Build:
    """Builds the book; gives the pages that were read and the warnings."""

    def run() -> tuple[set[str], str]:
        warnings = StringIO()
        with patch_docutils(str(book)), docutils_namespace():
            app = Sphinx(
                srcdir=str(book),
                confdir=None,
                outdir=str(tmp_path / "html"),
                doctreedir=str(tmp_path / "doctrees"),
                buildername="html",
                confoverrides={
                    "extensions": ["myst_parser", "readings_pages"],
                    "exclude_patterns": ["data"],
                    "html_static_path": [str(BOOK / "_static")],
                },
                status=None,
                warning=warnings,
            )
            read: set[str] = set()
            app.connect("env-before-read-docs", lambda app, env, names: read.update(names))
            app.build()
        return read, re.sub("\x1b\\[[0-9;]*m", "", warnings.getvalue())

    return run


def page(tmp_path: Path, name: str) -> str:
    return (tmp_path / "html" / f"{name}.html").read_text("utf-8")


def test_a_built_book_has_the_list_the_map_and_read_next(build: Build, tmp_path: Path) -> None:
    _, warnings = build()
    assert warnings == ""
    assert page(tmp_path, "readings").count('<tr id="reading-') == len(LIST)
    assert 'href="chapters/02-automatic-differentiation.html"' in page(tmp_path, "syllabus")
    chapter = page(tmp_path, "chapters/02-automatic-differentiation")
    assert '"../readings.html#chapter=automatic-differentiation"' in chapter
    assert "../_static/readings.js" in chapter


def test_only_what_changed_is_built_again(build: Build, book: Path, tmp_path: Path) -> None:
    everything, _ = build()
    leads_to = {"estimator", "planner", "milestones"}
    pages = leads_to | {"index", "plain", "readings", "syllabus", "chapters/02-automatic-differentiation"}
    assert everything == pages
    assert build()[0] == set()

    data = book / "data" / "readings.yml"
    data.write_text(data.read_text("utf-8").replace("title: karpathy/micrograd", "title: Micrograd, renamed"), "utf-8")
    assert build()[0] == {"readings", "syllabus", "chapters/02-automatic-differentiation"}
    assert "Micrograd, renamed" in page(tmp_path, "chapters/02-automatic-differentiation")

    (book / "chapters" / "03-inside-pytorch.md").write_text("# PyTorch\n")
    assert "syllabus" in build()[0]
    assert 'href="chapters/03-inside-pytorch.html"' in page(tmp_path, "syllabus")
    (book / "chapters" / "03-inside-pytorch.md").unlink()
    assert "syllabus" in build()[0]
    assert "03-inside-pytorch.html" not in page(tmp_path, "syllabus")


def test_a_slip_in_the_data_is_one_warning_at_the_directive(build: Build, book: Path) -> None:
    data = book / "data" / "readings.yml"
    data.write_text(data.read_text("utf-8").replace("kind: code", "kind: coed", 1), "utf-8")
    _, warnings = build()
    lines = [line for line in warnings.splitlines() if line.strip()]
    assert len(lines) == 3, "one for each page that uses the list"
    assert all("entry 'micrograd', field 'kind': got 'coed', expected one of course" in line for line in lines)


def test_an_unknown_chapter_is_told(build: Build, book: Path) -> None:
    (book / "plain.md").write_text("# Plain\n\n```{readings} 77\n```\n")
    _, warnings = build()
    assert "plain.md:3: " in warnings
    assert "unknown chapter in {readings}: got 77, expected a number or one of introduction" in warnings
