"""The offline book as a PDF: all parts on one page of the site, printed by Chromium."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from bs4 import BeautifulSoup

from book.browser import chromium
from book.offline.parts import Part
from book.serve import HOST, site_server
from mlsys_lab.errors import InputError

PAGE = "book-in-one-page.html"  # answered from memory: the site has no such file
# Widgets have drawn themselves, and the fonts of formulas are there.
DRAWN = """async () => {
  await document.fonts.ready;
  return [...document.querySelectorAll("*")].every((node) => !node.localName.startsWith("mlsys-") || node.shadowRoot);
}"""
FOOT = '<div style="font: 8px sans-serif; width: 100%; text-align: center"><span class="pageNumber"></span></div>'
PATIENCE_MS = 600_000
"""How long a page may take: the book has hundreds of pages, and the machine may be busy."""


def one_page(head: str, parts: Sequence[Part], title: str) -> str:
    """The whole book as one page of the site. head: what the site's pages load."""
    contents = "".join(f'<li><a href="#{part.name}">{part.title}</a></li>' for part in parts)
    articles = "".join(part.article.decode() for part in parts)
    cover = f'<article class="bd-article"><h1>{title}</h1><ol class="book-contents">{contents}</ol></article>'
    return (
        f'<!doctype html><html lang="en" data-theme="light" data-mode="light"><head><meta charset="utf-8">'
        f"<title>{title}</title>{head}</head><body class='book-in-one-page'>{cover}{articles}</body></html>"
    )


def write_pdf(site: Path, parts: Sequence[Part], title: str, path: Path) -> None:
    """Print the parts into a PDF with an outline.

    Raises:
        InputError: the site lacks a file that a part shows.
        MissingToolError: this machine has no Chromium.
    """
    head = "".join(f'<link rel="stylesheet" href="{name}">' for name in _styles(site))
    page_html = one_page(f'{head}<script type="module" src="_static/site.js"></script>', parts, title)
    server = site_server(site, 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with chromium() as browser:
            page = browser.new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.route(f"**/{PAGE}", lambda route: route.fulfill(body=page_html, content_type="text/html"))
            missing: list[str] = []
            page.on("response", lambda got: missing.append(got.url) if got.status >= 400 else None)
            page.goto(f"http://{HOST}:{server.server_port}/{PAGE}", wait_until="networkidle")
            page.wait_for_function(DRAWN)
            if missing:
                raise InputError("the site lacks files of the book", got=", ".join(missing), help="make book")
            page.pdf(
                path=path, format="A4", outline=True, tagged=True, print_background=True, prefer_css_page_size=True,
                display_header_footer=True, header_template="<span></span>", footer_template=FOOT,
            )  # fmt: skip
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _styles(site: Path) -> list[str]:
    """Addresses of the style sheets that the front page loads, which all pages load."""
    page = BeautifulSoup((site / "index.html").read_text("utf-8"), "html.parser")
    return [str(link["href"]) for link in page.select('link[rel="stylesheet"]')]
