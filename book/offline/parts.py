"""Parts of the offline book, in the order of the site's contents: chapters, answers, glossary and references."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from bs4 import BeautifulSoup, Tag

from book.linkcheck import SITE
from mlsys_lab.errors import InputError

ANSWERS = "answers"
BACK = ("glossary", "references")
"""Pages that follow the chapters."""
ONLY_ON_SITE = (
    ".headerlink, .copybtn, .lab-buttons, .chapter-foot, .edit-page, .pst-js-only, "
    "script:not([type='application/json']), .sd-summary-state-marker"
)
ADDRESSES = (("a", "href"), ("img", "src"))
SHORT_CODE = 30
"""Lines of code that stay on one page."""


@dataclass(frozen=True)
class TitlePage:
    """What the book's title page says. version: of the package that the book documents; address: of the site."""

    title: str
    author: str
    version: str
    address: str
    date: datetime.date

    def html(self) -> str:
        """The title page as HTML."""
        name, _, subtitle = self.title.partition(": ")
        return (
            f'<img src="_static/logo.svg" alt=""><h1>{escape(name)}</h1>'
            f'<p class="subtitle">{escape(subtitle[:1].upper() + subtitle[1:])}</p>'
            f'<div class="imprint"><p>{escape(self.author)}</p>'
            f"<p>Version {escape(self.version)}, {self.date:%-d %B %Y}</p>"
            f'<p><a href="{escape(self.address)}">{escape(self.address)}</a></p>'
            "<p>Text and pictures: CC BY 4.0. Code: MIT.</p></div>"
        )


@dataclass(frozen=True)
class Part:
    """One part: a unique name, its title, and its article as HTML, whose ids start with the name."""

    name: str
    title: str
    article: Tag

    @property
    def is_chapter(self) -> bool:
        """Whether this is a chapter, and not what follows the chapters."""
        return self.name not in (ANSWERS, *BACK)

    def sections(self) -> Iterator[tuple[str, str]]:
        """The id and the heading of each section."""
        for heading in self.article.select("section[id] > h2"):
            yield str(heading.parent["id"]), " ".join(heading.get_text().split())  # type: ignore[index]


def read_parts(site: Path, address: str) -> list[Part]:
    """Parts of the book from the site in a folder; links to what is not among them lead to `address`, the public site.

    Raises:
        InputError: the site has not been built.
    """
    pages = {page: _name(page) for page in _pages(site)}
    parts = []
    for page, name in pages.items():
        article = _article(site / page)
        title = _heading(article)
        if page.startswith("chapters/"):
            number, *_ = page.removeprefix("chapters/").partition("-")
            title = f"{int(number)} {title}"
            article.h1.string = title  # type: ignore[union-attr]
        for node in article.select(ONLY_ON_SITE):
            node.decompose()
        for summary in article.select("details.hide > summary"):
            summary.string = "Code"
        for details in article.select("details"):
            details["open"] = ""
        for widget in article.find_all(lambda node: node.name.startswith("mlsys-")):
            widget.name = "div"  # what stands in its place without a script: mostly a table
            for script in widget.select("script"):
                script.decompose()
        for code in article.select("div.highlight"):
            if code.get_text().count("\n") <= SHORT_CODE:
                code["class"] = [*code["class"], "on-one-page"]
        _point_within(article, page, pages, address)
        parts.append(Part(name, title, article))
    chapters = [part for part in parts if part.is_chapter]
    parts = [*chapters, _answers(chapters), *parts[len(chapters) :]]
    _mark_printed_addresses(parts)
    return parts


def _mark_printed_addresses(parts: list[Part]) -> None:
    """Class the external links whose address a printed page shows already: as the link's own text, or further up."""
    printed: set[str] = set()
    for part in parts:
        for link in part.article.select("a.reference.external[href]"):
            address = str(link["href"])
            if address in printed or link.get_text().strip() in address:
                link["class"] = [*link["class"], "address-printed"]
            printed.add(address)


def _pages(site: Path) -> list[str]:
    """Addresses of the pages, in order: chapters as the site's contents list them, then glossary and references."""
    if not (site / "index.html").is_file():
        raise InputError(f"no site in {site}", help="make book")
    contents = BeautifulSoup((site / "index.html").read_text("utf-8"), "html.parser").select("nav.bd-links a[href]")
    chapters = [str(link["href"]) for link in contents if str(link["href"]).startswith("chapters/")]
    return [*dict.fromkeys(chapters), *(f"{name}.html" for name in BACK)]


def _name(page: str) -> str:
    return Path(page).stem


def _article(page: Path) -> Tag:
    article = BeautifulSoup(page.read_text("utf-8"), "html.parser").select_one("article.bd-article")
    if article is None:
        raise InputError("a page without an article", got=page)
    return article


def _heading(article: Tag) -> str:
    heading = article.select_one("h1")
    for link in heading.select(".headerlink") if heading else ():
        link.decompose()
    return " ".join(heading.get_text().split()) if heading else ""


def _point_within(article: Tag, page: str, pages: dict[str, str], address: str) -> None:
    """Make ids unique in the book, lead links to its parts there, others to the public site, pictures to the root."""
    for node in article.select("[id]"):
        node["id"] = f"{pages[page]}--{node['id']}"
    article["id"] = pages[page]
    for tag, key in ADDRESSES:
        for node in article.select(f"{tag}[{key}]"):
            whole = urljoin(SITE + page, str(node[key]))
            if not whole.startswith(SITE):
                continue
            target = urlsplit(whole)
            path, fragment = target.path.lstrip("/") or page, target.fragment
            if tag == "img":
                node[key] = path
            elif path in pages:
                node[key] = f"#{pages[path]}--{fragment}" if fragment else f"#{pages[path]}"
            else:
                node[key] = urljoin(address, path) + (f"#{fragment}" if fragment else "")


def _answers(chapters: list[Part]) -> Part:
    """Move the answers to predictions and problems into a part of their own; each question leads to its answer."""
    soup = BeautifulSoup(f'<article class="bd-article" id="{ANSWERS}"><h1>Answers</h1></article>', "html.parser")
    article = soup.article
    assert article is not None
    for part in chapters:
        found = list(_questions(part))
        if found:
            article.append(_tag("h2", part.title))
        for number, (title, question, details) in enumerate(found, 1):
            here, there = f"{ANSWERS}--{part.name}-{number}", f"{part.name}--question-{number}"
            question["id"] = there
            heading = _tag("h3", "", id=here)
            heading.append(_tag("a", title, href=f"#{there}"))
            article.append(heading)
            body = details.select_one(".sd-summary-content")
            for node in list(body.children) if body else ():
                article.append(node.extract())
            details.replace_with(_tag("a", "Answer", href=f"#{here}"))
    return Part(ANSWERS, "Answers", article)


def _questions(part: Part) -> Iterator[tuple[str, Tag, Tag]]:
    """Predictions and problems of a part that have an answer: title, box, and the dropdown that holds the answer."""
    predictions = 0
    for box in part.article.select("div.admonition.predict, div.admonition.problem"):
        title = box.select_one(".admonition-title")
        assert title is not None
        if "predict" in box["class"]:
            predictions += 1
            title.string = f"Prediction {predictions}"
        for details in box.select("details.sd-dropdown"):
            yield " ".join(title.get_text().split()), box, details


def _tag(name: str, words: str, **attributes: str) -> Tag:
    tag = BeautifulSoup("", "html.parser").new_tag(name, attrs=attributes)
    tag.string = words
    return tag
