"""Check the links of the built site: `python book/linkcheck.py [--site FOLDER] [--external]`.

Pages, files and fragments on the site itself are always checked, without a network; other hosts only with --external.
"""

from __future__ import annotations

import argparse
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from book.project import BOOK, read_address
from mlsys_lab.errors import CourseError, InputError

ATTRIBUTES = {"a": "href", "img": "src", "script": "src", "link": "href", "source": "src", "iframe": "src"}
SITE = "http://site.invalid/"  # stands for the site's root, so that paths resolve as in a browser
NOT_FOUND = "404.html"
"""A page that is served at any address: its links name the folder that the site is published in."""
HEADERS = {"User-Agent": "Mozilla/5.0 (link check of a textbook)"}


@dataclass
class Page(HTMLParser):
    """HTML parser that collects what one page links to, and the fragments that it offers."""

    links: list[str] = field(default_factory=list)
    fragments: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect one element's link and its id."""
        values = dict(attrs)
        self.fragments.update(name for key in ("id", "name") if (name := values.get(key)))
        if link := values.get(ATTRIBUTES.get(tag, "")):
            self.links.append(link)


@cache
def read_page(path: Path) -> Page:
    """Parse a page of the site, once in a process."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def pages(site: Path) -> list[Path]:
    """Paths of the site's pages, without the theme's fragments in _static."""
    return [path for path in sorted(site.rglob("*.html")) if "_static" not in path.relative_to(site).parts]


def find_problem(site: Path, source: Path, link: str) -> str | None:
    """Why a link from the page `source` leads nowhere on the site; None if it leads somewhere or to another host."""
    if source == site / NOT_FOUND:
        link = link.removeprefix(urlsplit(read_address().site).path.rstrip("/") + "/") or "index.html"
    target = urlsplit(urljoin(SITE + source.relative_to(site).as_posix(), link))
    if target.netloc != urlsplit(SITE).netloc or target.scheme not in ("http", "https"):
        return None
    if link.startswith("/"):
        return "leads out of the folder that the site is published in"
    path = site / unquote(target.path).lstrip("/")
    if path.is_dir():
        path /= "index.html"
    if not path.is_file():
        return "no such file"
    # A fragment with "=" is a script's own state, such as the reading list's filters.
    if path.suffix == ".html" and target.fragment and "=" not in target.fragment:
        return None if unquote(target.fragment) in read_page(path).fragments else "no such place on that page"
    return None


def internal_problems(site: Path) -> list[str]:
    """One line for every broken link within the site."""
    return [
        f"{page.relative_to(site)}: {link}: {why}"
        for page in pages(site)
        for link in dict.fromkeys(read_page(page).links)
        if (why := find_problem(site, page, link))
    ]


def answer(url: str) -> str | None:
    """Why a page on another host cannot be had; None if it can, or if the host only refuses programs."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, headers=HEADERS), timeout=20).close()
    except urllib.error.HTTPError as error:
        return None if error.code in (401, 403, 429) else f"{error.code} {error.reason}"
    except (OSError, ValueError) as error:
        return str(error)
    return None


def external_problems(site: Path) -> list[str]:
    """One line for every link to another host that does not answer; the repository's own pages are among them."""
    sources: dict[str, str] = {}
    for page in pages(site):
        for link in read_page(page).links:
            if link.startswith(("http://", "https://")):
                sources.setdefault(link.split("#")[0], str(page.relative_to(site)))
    with ThreadPoolExecutor(16) as pool:
        found = pool.map(answer, sources)
        return [f"{sources[url]}: {url}: {why}" for url, why in zip(sources, found, strict=True) if why]


def main(arguments: list[str] | None = None) -> int:
    """Check the links of the built site as the command line says; returns 1 if any is broken, else 0."""
    parser = argparse.ArgumentParser(prog="book/linkcheck.py", description="Check the links of the built site.")
    parser.add_argument("--site", type=Path, default=BOOK / "_build" / "html", help="default: book/_build/html")
    parser.add_argument("--external", action="store_true", help="ask other hosts too")
    options = parser.parse_args(arguments)
    try:
        if not (options.site / "index.html").is_file():
            raise InputError(f"no site in {options.site}", help="make book")
        problems = internal_problems(options.site) + (external_problems(options.site) if options.external else [])
        for problem in problems:
            print(problem)
        if problems:
            raise InputError("broken links (above)", got=len(problems), expected=0)
    except CourseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{len(pages(options.site))} pages, no broken link")
    return 0


if __name__ == "__main__":
    sys.exit(main())
