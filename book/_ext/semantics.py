"""Corrects what other extensions tell assistive technology.

Entries of the references are items of their list: docutils gives them a role that no list may hold. Folded cells are
called what they say: myst-nb gives each the same other name.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

CORRECTIONS = {'role="doc-biblioentry"': 'role="listitem"', ' aria-label="Toggle hidden content"': ""}


def correct(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Correct the page that is being written."""
    for wrong, right in CORRECTIONS.items():
        if "body" in context:
            context["body"] = context["body"].replace(wrong, right)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the handler with Sphinx."""
    app.connect("html-page-context", correct)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
