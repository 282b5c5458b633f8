"""Leads "edit this page", in the header's menu and at the foot, to the file that a page's words come from."""

from __future__ import annotations

from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from book.project import BRANCH, Address, read_address

EDIT_BUTTON = "source-edit-button"
MADE_FROM = {
    "readings": "book/data/readings.yml",
    "references": "book/data/references.bib",
    "syllabus": "book/data/syllabus.yml",
}
"""Pages whose words stand in a file of data."""


def source_of(page: str) -> str:
    """The path, from the repository's root, of the file that a page of the book is made from.

    >>> source_of("chapters/05-cuda"), source_of("labs/03-cuda"), source_of("references")
    ('book/chapters/05-cuda.md', 'solutions/03-cuda/03-cuda.py', 'book/data/references.bib')
    """
    if page.startswith("labs/"):
        lab = page.removeprefix("labs/")
        return f"solutions/{lab}/{lab}.py"
    return MADE_FROM.get(page, f"book/{page}.md")


def edit_url(page: str, address: Address) -> str:
    """The address at which a page's source is edited."""
    return f"{address.repository}/edit/{BRANCH}/{source_of(page)}"


def add_edit_links(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Give the page's edit button its address, and put a link beside the licence at the foot."""
    if doctree is None:
        return
    url = edit_url(pagename, read_address())
    for group in context["header_buttons"]:
        for button in group.get("buttons", []):
            if button["label"] == EDIT_BUTTON:
                button["url"] = url
    context["theme_extra_footer"] += f'<p><a class="edit-page" href="{escape(url)}">Edit this page</a></p>'


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx, after the theme has made its buttons."""
    app.connect("html-page-context", add_edit_links, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
