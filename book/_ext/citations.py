"""Entries of the references as items of their list: docutils gives them a role that no list may hold."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def name_items(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Give entries the role of list items on the page that is being written."""
    if "body" in context:
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the handler with Sphinx."""
    app.connect("html-page-context", name_items)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
