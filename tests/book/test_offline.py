"""The offline book from a small site: chapters in order, answers at the end, links within, and an EPUB that is XML."""

from __future__ import annotations

import datetime
import subprocess
import zipfile
from base64 import b64decode
from pathlib import Path
from xml.etree import ElementTree

import pytest

from book.mathematics import typeset
from book.offline.epub import write_epub
from book.offline.parts import Part, TitlePage, read_parts
from book.offline.pdf import one_page
from book.project import BOOK
from mlsys_lab.errors import InputError

ADDRESS = "https://example.org/book/"
TITLE = TitlePage("A & B: what they are", "them", "0.1", ADDRESS, datetime.date(2026, 11, 29))
DOT = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")
"""A picture of one black pixel."""
EPUBCHECK = ("java", "-jar", "/usr/bin/epubcheck")
XHTML = "{http://www.w3.org/1999/xhtml}"
MATHML = "{http://www.w3.org/1998/Math/MathML}"
SVG = "{http://www.w3.org/2000/svg}"
FIRST = """<h1>One<a class="headerlink" href="#one">#</a></h1>
<section id="start"><h2>Start<a class="headerlink" href="#start">#</a></h2>
<p>See <a href="18-two.html#more">two</a>, <a href="18-two.html">all of it</a>,
<a href="../labs/01-lab.html#task">the lab</a>, <a href="#start">here</a>, <a class="reference external" href="https://example.com/">there</a>
and <a class="reference external" href="https://example.com/">again</a>.
<span class="math">{formula}</span> <img src="../_images/dot.png" alt="a dot"></p>
<mlsys-ring><script type="application/json">{{}}</script><table><tr><td>5 < 6</td></tr></table></mlsys-ring>
<svg class="chart-wide" viewBox="0 0 2 1"></svg><svg class="chart-narrow" viewBox="0 0 1 1"></svg></section>
<div class="admonition problem" id="p"><p class="admonition-title">Problem 1 · Count</p><p>How many?</p>
<details class="sd-dropdown"><summary>Answer</summary>
<div class="sd-summary-content"><p>Forty-two.</p></div></details></div>
<div class="admonition predict"><p class="admonition-title">Predict</p><p>Which?</p>
<details class="sd-dropdown"><summary>Answer</summary>
<div class="sd-summary-content"><p>B.</p></div></details></div>
<details class="hide"><summary><p class="collapsed">Show</p><p class="expanded">Hide</p></summary>
<pre>1</pre></details>"""


def page(article: str) -> str:
    """A page of a site around this article."""
    return f'<html><nav class="bd-links"></nav><article class="bd-article">{article}</article></html>'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site with two chapters and what follows them."""
    formula = typeset({("x^2", False)}).html["x^2", False]
    links = "".join(f'<a href="{name}.html"></a>' for name in ("chapters/01-one", "labs/01-lab", "chapters/18-two"))
    texts = {
        "index": f'<nav class="bd-links">{links}</nav>',
        "chapters/01-one": page(FIRST.format(formula=formula)),
        "chapters/18-two": page('<h1>Two</h1><section id="more"><p>More.</p></section>'),
        "glossary": page("<h1>Glossary</h1>"),
        "references": page("<h1>References</h1>"),
    }
    for name, text in texts.items():
        path = tmp_path / f"{name}.html"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    (tmp_path / "_images").mkdir()
    (tmp_path / "_images" / "dot.png").write_bytes(DOT)
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "logo.svg").write_bytes((BOOK / "_static" / "logo.svg").read_bytes())
    return tmp_path


@pytest.fixture
def parts(site: Path) -> list[Part]:
    """Its parts."""
    return read_parts(site, ADDRESS)


def test_parts_come_in_the_order_of_the_contents_and_answers_after_the_chapters(parts: list[Part]) -> None:
    assert [one.title for one in parts] == ["1 One", "18 Two", "Answers", "Glossary", "References"]


def test_answers_leave_their_problems_and_each_leads_to_the_other(parts: list[Part]) -> None:
    first, answers = parts[0].article, parts[2].article
    assert "Forty-two" not in first.get_text() and "Forty-two" in answers.get_text()
    problem = first.select_one(".problem")
    assert problem and "How many?" in problem.get_text()
    for box, words in ((problem, "Problem 1 · Count"), (first.select_one(".predict"), "Prediction 1")):
        (there,) = [link["href"] for link in box.select("a")]
        title = answers.select_one(f'[id="{str(there)[1:]}"]')
        assert title and title.get_text() == words and title.a and title.a["href"] == f"#{box['id']}"


def test_links_lead_within_the_book_and_else_to_the_public_site(parts: list[Part]) -> None:
    links = [link["href"] for link in parts[0].article.select("section a")]
    within = ["#18-two--more", "#18-two", f"{ADDRESS}labs/01-lab.html#task", "#01-one--start"]
    assert links == [*within, "https://example.com/", "https://example.com/"]
    whole = one_page("", parts, TITLE, {"01-one--start": 7})
    assert '<a href="#01-one--start">Start</a><span>7</span>' in whole and "<h1>A &amp; B</h1>" in whole
    assert all(f'id="{name}"' in whole for name in ("18-two--more", "18-two", "01-one--start"))
    assert 'src="_images/dot.png"' in whole


def test_an_address_is_printed_once(parts: list[Part]) -> None:
    printed = ["address-printed" not in link["class"] for link in parts[0].article.select("a.external")]
    assert printed == [True, False]


def test_an_epub_is_xml_throughout_and_has_what_its_package_lists(
    site: Path, parts: list[Part], tmp_path: Path
) -> None:
    write_epub(site, parts, TITLE, tmp_path / "book.epub")
    with zipfile.ZipFile(tmp_path / "book.epub") as book:
        names, files = book.namelist(), {name: book.read(name) for name in book.namelist()}
    assert names[0] == "mimetype" and files["mimetype"] == b"application/epub+zip"
    package = ElementTree.fromstring(files["book/content.opf"])
    listed = {f"book/{item.get('href')}" for item in package.iter("{http://www.idpf.org/2007/opf}item")}
    assert listed == set(names) - {"mimetype", "META-INF/container.xml", "book/content.opf"}
    assert files["book/_images/dot.png"] == DOT
    trees = {name: ElementTree.fromstring(text) for name, text in files.items() if name.endswith("xhtml")}
    first = trees["book/01-one.xhtml"]
    assert len(list(first.iter(f"{MATHML}msup"))) == 1 and not list(first.iter(f"{XHTML}mjx-container"))
    assert [svg.get("viewBox") for svg in first.iter(f"{SVG}svg")] == ["0 0 2 1"]
    assert "5 < 6" in [cell.text for cell in first.iter(f"{XHTML}td")]
    for tree in trees.values():
        for link in tree.iter(f"{XHTML}a"):
            target, _, fragment = link.get("href", "").partition("#")
            if "://" not in target:
                there = trees[f"book/{target}"] if target else tree
                assert not fragment or any(node.get("id") == fragment for node in there.iter()), link.get("href")


def test_an_epub_is_valid(site: Path, parts: list[Part], tmp_path: Path) -> None:
    write_epub(site, parts, TITLE, tmp_path / "book.epub")
    check = subprocess.run([*EPUBCHECK, tmp_path / "book.epub"], capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stderr + check.stdout


def test_without_a_site_it_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no site in .* make book"):
        read_parts(tmp_path, ADDRESS)
