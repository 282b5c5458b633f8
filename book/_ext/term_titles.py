"""Links to the glossary carry the definition of their term: it shows when a reader points at the link or tabs to it."""

from __future__ import annotations

from textwrap import shorten
from typing import Any

from docutils import nodes
from search_index import hits_of
from sphinx.application import Sphinx

GLOSSARY = "glossary"
MOST = 300
"""Letters of a definition that are shown."""


def read_definitions(app: Sphinx) -> dict[str, str]:
    """Definitions of the glossary by the id of their term; none where the book has no glossary."""
    if GLOSSARY not in app.env.found_docs:
        return {}
    terms = [hit for hit in hits_of(app.env.get_doctree(GLOSSARY), GLOSSARY) if hit.kind == "term"]
    return {term.anchor: shorten(term.text, MOST, placeholder=" …") for term in terms}


class Titles:
    """Reads the definitions once per build."""

    def __init__(self) -> None:
        self._definitions: dict[str, str] | None = None

    def add(self, app: Sphinx, doctree: nodes.document, page: str) -> None:
        """Give every link of a page to a term its definition as a title."""
        if page == GLOSSARY or app.builder.format != "html":
            return
        links = [one for one in doctree.findall(nodes.reference) if f"{GLOSSARY}.html#term-" in one.get("refuri", "")]
        if links and self._definitions is None:
            self._definitions = read_definitions(app)
        for link in links:
            if definition := (self._definitions or {}).get(link["refuri"].partition("#")[2]):
                link["reftitle"] = definition


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the handler with Sphinx."""
    app.connect("doctree-resolved", Titles().add)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
