"""The offline book as a PDF: all parts on one page of the site, printed by Chromium.

The contents need page numbers, which are known only once the book has been printed. It is therefore printed at least
twice: each PDF says on which page each part and section starts, until that agrees with the contents that it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path

from bs4 import BeautifulSoup
from playwright.sync_api import Page
from pypdf import PdfReader

from book.browser import chromium
from book.offline.parts import Part, TitlePage
from book.project import BOOK
from book.serve import running, site_server
from mlsys_lab.errors import InputError

PAGE = "book-in-one-page.html"  # answered from memory: the site has no such file
MOST_PRINTS = 5
PATIENCE_MS = 600_000
"""How long a page may take: the book has hundreds of pages, and the machine may be busy."""


def one_page(head: str, parts: Sequence[Part], title: TitlePage, page_numbers: Mapping[str, int]) -> str:
    """The whole book as one page of the site.

    Args:
        head: what the site's pages load.
        parts: the book, in order.
        title: what stands on the title page.
        page_numbers: where the parts and sections of the contents start, by their id; may be empty.
    """
    lines = []
    for part in parts:
        lines.append(_line(part.name, part.title, "contents-part", page_numbers))
        if part.is_chapter:
            lines += [_line(name, words, "contents-section", page_numbers) for name, words in part.sections()]
    running = "".join(
        f'[id="{part.name}"] {{ page: {_page(part)} }} '
        f'@page {_page(part)} {{ @top-right {{ content: "{part.title}" }} }} '
        for part in parts
    )
    contents = f'<article class="bd-article book-contents"><h1>Contents</h1><ol>{"".join(lines)}</ol></article>'
    articles = "".join(part.article.decode() for part in parts)
    return (
        f'<!doctype html><html lang="en" data-theme="light" data-mode="light"><head><meta charset="utf-8">'
        f"<title>{escape(title.title)}</title>{head}<style>{running}</style></head><body class='book-in-one-page'>"
        f'<article class="bd-article book-cover">{title.html()}</article>{contents}{articles}</body></html>'
    )


def write_pdf(site: Path, parts: Sequence[Part], title: TitlePage, path: Path) -> None:
    """Print the parts into a PDF with an outline and page numbers in its contents.

    Raises:
        InputError: the site lacks a file that a part shows, or the pages differ with every print.
        MissingToolError: this machine has no Chromium.
    """
    style = (BOOK / "offline" / "pdf.css").read_text("utf-8")
    head = "".join(f'<link rel="stylesheet" href="{name}">' for name in _styles(site))
    head += f"<style>{style}</style>"
    with running(site_server(site, 0)) as url, chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        printed, numbers = b"", {}
        for _ in range(MOST_PRINTS):
            printed = _print(page, url + PAGE, one_page(head, parts, title, numbers))
            if numbers == (numbers := read_page_numbers(printed)):
                break
        else:
            raise InputError("the page numbers do not settle", got=f"{MOST_PRINTS} prints that differ")
        path.write_bytes(printed)


def read_page_numbers(pdf: bytes) -> dict[str, int]:
    """The pages, counted from 1, on which the link targets of a PDF stand, by their name."""
    reader = PdfReader(BytesIO(pdf))
    found = {name: reader.get_destination_page_number(place) for name, place in reader.named_destinations.items()}
    return {name.removeprefix("/"): number + 1 for name, number in found.items() if number is not None}


def _print(page: Page, address: str, html: str) -> bytes:
    missing: list[str] = []
    page.unroute_all()
    page.route(f"**/{PAGE}", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.on("response", lambda got: missing.append(got.url) if got.status >= 400 else None)
    page.goto(address, wait_until="networkidle")
    page.evaluate("document.fonts.ready.then(() => null)")
    if missing:
        raise InputError("the site lacks files of the book", got=", ".join(missing), help="make book")
    return page.pdf(outline=True, tagged=True, print_background=True, prefer_css_page_size=True)


def _line(name: str, words: str, kind: str, page_numbers: Mapping[str, int]) -> str:
    number = page_numbers.get(name, "")
    return f'<li class="{kind}"><a href="#{name}">{escape(words)}</a><span>{number}</span></li>'


def _page(part: Part) -> str:
    """The part's name as CSS wants the name of a page: it may not begin with a digit."""
    return f"part-{part.name}"


def _styles(site: Path) -> list[str]:
    """Addresses of the style sheets that the front page loads, which all pages load."""
    page = BeautifulSoup((site / "index.html").read_text("utf-8"), "html.parser")
    return [str(link["href"]) for link in page.select('link[rel="stylesheet"]')]
