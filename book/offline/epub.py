"""The offline book as an EPUB 3: a chapter of XHTML for each part, formulas as MathML, drawings and charts as SVG."""

from __future__ import annotations

import copy
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from bs4 import BeautifulSoup, Tag

from book.offline.parts import Part, TitlePage
from book.project import BOOK

STYLES = tuple(BOOK / name for name in ("_static/drawings.css", "_static/charts.css", "offline/epub.css"))
CONTAINER = (
    '<?xml version="1.0" encoding="utf-8"?>'
    '<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="book/content.opf" media-type="application/oebps-package+xml"/>'
    "</rootfiles></container>"
)
CASED = {"viewbox": "viewBox", "preserveaspectratio": "preserveAspectRatio"}
"""Attributes of SVG whose capitals an HTML parser forgets, and XHTML wants."""
TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg"}
NAMESPACES = 'xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops" xml:lang="en" lang="en"'


def write_epub(site: Path, parts: Sequence[Part], title: TitlePage, path: Path) -> None:
    """Write the parts as an EPUB; the address of the public site is its identifier."""
    files = {f"{part.name}.xhtml": _document(part, parts) for part in parts}
    cover = BeautifulSoup(title.html(), "html.parser")
    shown = [cover, *(part.article for part in parts)]
    pictures = sorted({str(img["src"]) for html in shown for img in html.select("img[src]") if _local(img)})
    files["title.xhtml"] = _xhtml(
        title.title, f'<section class="book-cover">{cover.decode(formatter="minimal")}</section>'
    )
    files["nav.xhtml"] = _xhtml("Contents", _contents(parts))
    files["book.css"] = "".join(style.read_text("utf-8") for style in STYLES)
    files["content.opf"] = _package(parts, pictures, title)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book:
        book.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)  # first and plain, as the format wants it
        book.writestr("META-INF/container.xml", CONTAINER)
        for name, text in files.items():
            book.writestr(f"book/{name}", text)
        for picture in pictures:
            book.write(site / picture, f"book/{picture}")


def _document(part: Part, parts: Sequence[Part]) -> str:
    """A part as XHTML: formulas as MathML alone, of each chart one picture, widgets as what stands in their place."""
    article = copy.copy(part.article)
    for formula in article.select("mjx-container"):
        formula.replace_with(formula.select_one("math").extract())  # type: ignore[union-attr]
    for node in article.select("svg.chart-narrow, script, input"):
        node.decompose()
    for svg in article.select("svg"):
        svg["xmlns"] = "http://www.w3.org/2000/svg"
        for key in CASED.keys() & svg.attrs.keys():
            svg[CASED[key]] = svg.attrs.pop(key)
    own = {node["id"] for node in article.select("[id]")} | {part.name}
    for link in article.select('a[href^="#"]'):
        target = str(link["href"])[1:]
        if target not in own:
            owner = next(one for one in parts if re.match(rf"{one.name}(--|$)", target))
            link["href"] = f"{owner.name}.xhtml#{target}"
    return _xhtml(part.title, article.decode(formatter="minimal"))


def _contents(parts: Sequence[Part]) -> str:
    """The parts, and under each chapter its sections, as the navigation that readers of EPUB show."""
    entries = []
    for part in parts:
        sections = "".join(
            f'<li><a href="{part.name}.xhtml#{name}">{escape(words)}</a></li>'
            for name, words in (part.sections() if part.is_chapter else ())
        )
        below = f"<ol>{sections}</ol>" if sections else ""
        entries.append(f'<li><a href="{part.name}.xhtml">{escape(part.title)}</a>{below}</li>')
    return f'<nav epub:type="toc"><h1>Contents</h1><ol>{"".join(entries)}</ol></nav>'


def _xhtml(title: str, body: str) -> str:
    head = f'<title>{escape(title)}</title><link rel="stylesheet" type="text/css" href="book.css"/>'
    begin = f'<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html><html {NAMESPACES}>'
    return f"{begin}<head>{head}</head><body>{body}</body></html>"


def _package(parts: Sequence[Part], pictures: Sequence[str], title: TitlePage) -> str:
    """The list of all files, and the order in which to read them."""
    items = ['<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>']
    items.append('<item id="title" href="title.xhtml" media-type="application/xhtml+xml"/>')
    items.append('<item id="style" href="book.css" media-type="text/css"/>')
    for part in parts:
        holds = [name for name, wanted in (("mathml", "math"), ("svg", "svg")) if part.article.select_one(wanted)]
        properties = f' properties="{" ".join(holds)}"' if holds else ""
        items.append(
            f'<item id="{_id(part)}" href="{part.name}.xhtml" media-type="application/xhtml+xml"{properties}/>'
        )
    for number, picture in enumerate(pictures):
        items.append(f'<item id="picture{number}" href="{picture}" media-type="{TYPES[Path(picture).suffix]}"/>')
    spine = "".join(f'<itemref idref="{_id(part)}"/>' for part in parts)
    return (
        '<?xml version="1.0" encoding="utf-8"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0" '
        'unique-identifier="address"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f'<dc:identifier id="address">{escape(title.address)}</dc:identifier><dc:title>{escape(title.title)}</dc:title>'
        f"<dc:creator>{escape(title.author)}</dc:creator><dc:language>en</dc:language><dc:date>{title.date}</dc:date>"
        f'<meta property="dcterms:modified">{title.date}T00:00:00Z</meta></metadata>'
        f"<manifest>{''.join(items)}</manifest>"
        f'<spine><itemref idref="title"/><itemref idref="nav"/>{spine}</spine></package>'
    )


def _id(part: Part) -> str:
    return f"part-{part.name}"


def _local(img: Tag) -> bool:
    return "://" not in str(img["src"]) and not str(img["src"]).startswith("data:")
