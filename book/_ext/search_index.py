"""The site's search: an index of sections, glossary terms and readings, in place of Sphinx's index of words.

Each page leaves what can be found on it beside its doctree as it is written; at the end of a build all of that becomes
search-index.json. A hit is a place on a page, and its text is what a reader sees there: no TeX, no code, no output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import readings
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

INDEX = "search-index.json"
_UNSAID = (nodes.raw, nodes.literal_block, nodes.comment, nodes.image, nodes.math_block, nodes.topic, addnodes.glossary)
_PLAIN = re.compile(r"[^\\{}^_$]+")


@dataclass(frozen=True)
class Hit:
    """A place that a search can lead to: its page, the fragment there ("" for the top), title, text, and what it is."""

    page: str
    anchor: str
    title: str
    text: str
    kind: str  # section, term or reading


def read(node: nodes.Node) -> str:
    """The words of a node, without code, outputs and nested sections; mathematics that is not plain becomes "…".

    >>> read(nodes.paragraph("", "", nodes.math("", "N"), nodes.Text(" and "), nodes.math("", "N^2")))
    'N and …'
    """
    return " ".join("".join(_words(node)).split())


def _words(node: nodes.Node) -> Iterator[str]:
    if isinstance(node, nodes.Text):
        yield node.astext()
    elif isinstance(node, nodes.math):
        yield node.astext() if _PLAIN.fullmatch(node.astext()) else "…"
    elif not isinstance(node, (*_UNSAID, nodes.section, nodes.title)):
        for child in node.children:
            yield from _words(child)
        if not isinstance(node, nodes.Inline):
            yield " "


def hits_of(doctree: nodes.document, page: str) -> list[Hit]:
    """Everything that can be found on a page, in order: its sections, the first being the page, and its terms."""
    found = []
    for number, section in enumerate(doctree.findall(nodes.section)):
        title = "".join(word for child in section[0].children for word in _words(child))
        found.append(Hit(page, section["ids"][0] if number else "", title, read_section(section), "section"))
    for item in doctree.findall(nodes.definition_list_item):
        terms = [term for term in item.findall(nodes.term) if term["ids"]]
        if isinstance(item.parent.parent, addnodes.glossary) and terms:
            text = " ".join(read(definition) for definition in item.findall(nodes.definition))
            found += [Hit(page, term["ids"][0], read(term), text, "term") for term in terms]
    return found


def read_section(section: nodes.section) -> str:
    """The words of a section without those of its title and of the sections within it."""
    return " ".join(filter(None, (read(child) for child in section.children)))


def keep_hits(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Leave a page's hits beside its doctree, for builds that do not write it again."""
    path = _kept(app, docname)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(hit) for hit in hits_of(doctree, docname)]), encoding="utf-8")


def write_index(app: Sphinx, exception: Exception | None) -> None:
    """Write search-index.json out of the hits of all pages and the reading list."""
    if exception or app.builder.format != "html":
        return
    pages = sorted(page for page in app.env.found_docs if _kept(app, page).exists())
    hits = [hit for page in pages for hit in json.loads(_kept(app, page).read_text("utf-8"))]
    if "readings" in pages:
        hits += [asdict(_hit(reading)) for reading in readings.load(readings.READINGS)]
    titles = {page: _where(page, app.env.titles[page].astext()) for page in pages}
    index = {"pages": titles, "hits": [list(hit.values()) for hit in hits]}
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    (Path(app.outdir) / INDEX).write_text(text, encoding="utf-8")


def _kept(app: Sphinx, page: str) -> Path:
    return Path(app.doctreedir) / f"{page}.hits.json"


def _hit(reading: readings.Reading) -> Hit:
    by = f"{', '.join(reading.authors)} · {reading.why}"
    return Hit("readings", f"reading-{reading.id}", reading.title, by, "reading")


def _where(page: str, title: str) -> str:
    """What a hit's page is called: "Chapter 5 · CUDA". Titles of labs have their number."""
    numbered = re.fullmatch(r"chapters/(\d+)-.*", page)
    return f"Chapter {int(numbered[1])} · {title}" if numbered else title


def replace_sphinx_search(app: Sphinx) -> None:
    """Keep Sphinx from making an index and a search page of its own."""
    app.builder.search = False


def search_page(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The page that shows results, which is no document."""
    yield "search", {"title": "Search"}, "search.html"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("builder-inited", replace_sphinx_search)
    app.connect("doctree-resolved", keep_hits, priority=900)
    app.connect("html-collect-pages", search_page)
    app.connect("build-finished", write_index)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
