"""Parts of the offline book, in the order of the site's contents: chapters, answers, glossary and references."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from bs4 import BeautifulSoup, Tag

from book.linkcheck import SITE
from mlsys_lab.errors import InputError

BACK = ("glossary", "references")
"""Pages that follow the chapters."""
ONLY_ON_SITE = (
    ".headerlink, .copybtn, .lab-buttons, .edit-page, .pst-js-only, "
    "script:not([type='application/json']), .sd-summary-state-marker"
)
ADDRESSES = (("a", "href"), ("img", "src"))


@dataclass(frozen=True)
class Part:
    """One part: a name that is no other part's, its title, and its article as HTML, whose ids begin with the name."""

    name: str
    title: str
    article: Tag


def read_parts(site: Path, address: str) -> list[Part]:
    """Parts of the book from the site in a folder; links to what is not among them lead to `address`, the public site.

    Raises:
        InputError: the site has not been built.
    """
    pages = {page: _name(page) for page in _pages(site)}
    parts = []
    for number, (page, name) in enumerate(pages.items(), 1):
        article = _article(site / page)
        title = _heading(article)
        if page.startswith("chapters/"):
            title = f"{number} {title}"
            article.h1.string = title  # type: ignore[union-attr]
        for node in article.select(ONLY_ON_SITE):
            node.decompose()
        _point_within(article, page, pages, address)
        parts.append(Part(name, title, article))
    chapters = [part for part in parts if part.name not in BACK]
    return [*chapters, _answers(chapters), *parts[len(chapters) :]]


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
    """Move the answers to problems out of the chapters into a part of their own; each problem leads to its answer."""
    soup = BeautifulSoup('<article class="bd-article" id="answers"><h1>Answers</h1></article>', "html.parser")
    article = soup.article
    assert article is not None
    for part in chapters:
        found = list(_problems(part))
        if found:
            article.append(_tag("h2", part.title))
        for number, (problem, details) in enumerate(found, 1):
            here, there = f"answers--{part.name}-{number}", f"{part.name}--problem-{number}"
            problem["id"] = there
            title = _tag("h3", "", id=here)
            title.append(
                _tag("a", " ".join(problem.select_one(".admonition-title").get_text().split()), href=f"#{there}")
            )  # type: ignore[union-attr]
            article.append(title)
            body = details.select_one(".sd-summary-content")
            for node in list(body.children) if body else ():
                article.append(node.extract())
            details.replace_with(_tag("a", "Answer", href=f"#{here}"))
    return Part("answers", "Answers", article)


def _problems(part: Part) -> Iterator[tuple[Tag, Tag]]:
    """Problems of a part that have an answer, and the dropdown that holds it."""
    for problem in part.article.select("div.admonition.problem"):
        for details in problem.select("details.sd-dropdown"):
            yield problem, details


def _tag(name: str, words: str, **attributes: str) -> Tag:
    tag = BeautifulSoup("", "html.parser").new_tag(name, attrs=attributes)
    tag.string = words
    return tag
