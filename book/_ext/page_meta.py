"""What other sites are told of a page: its description and social card, a sitemap, and the page for a wrong address.

The canonical address comes from Sphinx, since build.py sets html_baseurl.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from textwrap import shorten
from typing import Any

import readings
from docutils import nodes
from search_index import read
from sphinx.application import Sphinx

from book.files import write_if_changed
from book.project import LABS
from mlsys_lab.stack.labinfo import read_lab

CARD = "_static/screenshots/front-light.png"
"""Picture of the site's cards."""
WIDEST = 160
"""Characters of a description that search engines show."""
SITE = (
    "An open textbook and lab course on machine-learning systems: build the stack from one derivative to a served "
    "model, on any laptop."
)


def describe(page: str, doctree: nodes.document, root: str) -> str:
    """What a page is about in one line: of a chapter the syllabus's words, of a lab its summary, else its beginning."""
    if page == root:
        return shorten(SITE, WIDEST, placeholder=" …")
    if page.startswith("labs/") and (LABS / page.removeprefix("labs/")).is_dir():
        return shorten(read_lab(LABS / page.removeprefix("labs/")).summary, WIDEST, placeholder=" …")
    chapters = {chapter.page: chapter.about for chapter in readings.load_syllabus(labs=()).chapters}
    first = (read(paragraph) for paragraph in doctree.findall(nodes.paragraph))
    return shorten(chapters.get(page) or next(filter(None, first), SITE), WIDEST, placeholder=" …")


def tags(title: str, description: str, url: str, base: str, site: str) -> str:
    """HTML of a page's description and card; nothing in it is fetched by the page itself."""
    named = {"description": description, "twitter:card": "summary_large_image"}
    properties = {
        "og:title": title,
        "og:description": description,
        "og:type": "article",
        "og:url": url,
        "og:site_name": site,
        "og:image": base + CARD,
    }
    lines = [f'<meta name="{name}" content="{escape(value)}">' for name, value in named.items()]
    lines += [f'<meta property="{name}" content="{escape(value)}">' for name, value in properties.items()]
    return "\n".join(lines)


def add_tags(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Put description and card into a page's head."""
    if doctree is None:
        return
    base = _base(app)
    description = describe(pagename, doctree, app.config.root_doc)
    title = app.env.titles[pagename].astext()
    context["metatags"] += tags(title, description, f"{base}{pagename}.html", base, app.config.project)


def write_sitemap(app: Sphinx, exception: Exception | None) -> None:
    """Write sitemap.xml: the public address of every page."""
    if exception or app.builder.format != "html":
        return
    urls = "\n".join(
        f"<url><loc>{escape(f'{_base(app)}{page}.html')}</loc></url>" for page in sorted(app.env.found_docs)
    )
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{urls}\n</urlset>\n'
    write_if_changed(Path(app.outdir) / "sitemap.xml", text.encode())


def _base(app: Sphinx) -> str:
    return f"{app.config.html_baseurl.rstrip('/')}/"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("html-page-context", add_tags)
    app.connect("build-finished", write_sitemap)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
