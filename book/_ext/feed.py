"""The changelog as an RSS feed, `changelog.xml`: an item for each of its entries.

The changelog has no dates, so neither have the items: a reader shows when it saw them first.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from docutils import nodes
from sphinx.application import Sphinx

from book.files import write_if_changed

CHANGELOG = "changelog"
LONGEST_TITLE = 90


def feed(title: str, site: str, changelog: nodes.document) -> bytes:
    """RSS 2.0 of a changelog: sections are versions, and the items of their lists are what changed."""
    rss = Element("rss", version="2.0")
    channel = SubElement(rss, "channel")
    page = f"{site}{CHANGELOG}.html"
    for tag, text in (("title", f"{title}: changes"), ("link", page), ("description", "What is new in the course.")):
        SubElement(channel, tag).text = text
    for entry in changelog.findall(nodes.list_item):
        text = " ".join(entry.astext().split())
        item = SubElement(channel, "item")
        SubElement(item, "title").text = headline(text)
        SubElement(item, "description").text = text
        SubElement(item, "link").text = page
        SubElement(item, "guid", isPermaLink="false").text = hashlib.sha256(text.encode()).hexdigest()[:16]
    indent(rss)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + tostring(rss, "utf-8") + b"\n"


def headline(text: str) -> str:
    """The first clause of an entry, cut between words if it is long.

    >>> headline("Lab 7, collectives: all-reduce by trees, rings and doubling.")
    'Lab 7, collectives'
    """
    clause = min((text.partition(mark)[0] for mark in (": ", ". ", "; ")), key=len).rstrip(".")
    if len(clause) <= LONGEST_TITLE:
        return clause
    return clause[:LONGEST_TITLE].rpartition(" ")[0] + " …"


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the feed after a build that went well."""
    if error or app.builder.format != "html" or CHANGELOG not in app.env.found_docs:
        return
    text = feed(app.config.html_title, app.config.html_baseurl, app.env.get_doctree(CHANGELOG))
    write_if_changed(Path(app.outdir) / f"{CHANGELOG}.xml", text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
