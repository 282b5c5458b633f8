"""Links to the glossary and to the references say in their title what they lead to.

A term's link has its definition, a citation's the work's title and year. A reader sees them by pointing at the link or
tabbing to it, and on wide screens in the margin (`_static/margin.js`).
"""

from __future__ import annotations

from textwrap import shorten
from typing import Any

from docutils import nodes
from pybtex.richtext import Text
from search_index import hits_of
from sphinx.application import Sphinx

GLOSSARY, REFERENCES = "glossary", "references"
MOST = 300
"""Letters of a definition that are shown."""


def read_definitions(app: Sphinx) -> dict[str, str]:
    """Definitions of the glossary by the id of their term; none where the book has no glossary."""
    if GLOSSARY not in app.env.found_docs:
        return {}
    terms = [hit for hit in hits_of(app.env.get_doctree(GLOSSARY), GLOSSARY) if hit.kind == "term"]
    return {term.anchor: shorten(term.text, MOST, placeholder=" …") for term in terms}


def read_works(app: Sphinx) -> dict[str, str]:
    """Titles and years of the references by the id of their entry."""
    found = {}
    for citation in app.env.get_domain("cite").citations:  # type: ignore[attr-defined]
        fields = citation.entry.fields
        title = Text.from_latex(fields["title"]).render_as("text")
        found[citation.citation_id] = f"{title}, {fields.get('year', 'n.d.')}"
    return found


class Titles:
    """Reads definitions and works once per build."""

    def __init__(self) -> None:
        self._titles: dict[str, dict[str, str]] = {}

    def add(self, app: Sphinx, doctree: nodes.document, page: str) -> None:
        """Give the links of a page to terms and works their titles."""
        if app.builder.format != "html":
            return
        self._titles = self._titles or {GLOSSARY: read_definitions(app), REFERENCES: read_works(app)}
        for link in doctree.findall(nodes.reference):
            target, _, anchor = link.get("refuri", "").partition("#")
            name = target.rpartition("/")[2].removesuffix(".html")
            if name != page and (title := self._titles.get(name, {}).get(anchor)):
                link["reftitle"] = title


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the handler with Sphinx."""
    app.connect("doctree-resolved", Titles().add)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
