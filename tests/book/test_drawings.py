"""Every drawing is XML in the kit's own classes, fits a telephone, and is shown and referred to by a chapter."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from book.drawings import draw, drawing_names, kit
from mlsys_lab.comm import run
from mlsys_lab.comm.collectives import all_reduce
from mlsys_lab.configs import TransformerConfig, preset
from mlsys_lab.errors import InputError
from mlsys_lab.flops.bounds import machine
from mlsys_lab.flops.estimate import estimate_serving
from mlsys_lab.flops.layout import Layout
from mlsys_lab.hardware import device
from mlsys_lab.inference.cache import Paged
from mlsys_lab.inference.cache.filling import Text, fillings
from mlsys_lab.models import Transformer
from tests.drawn import boxes, svgs

BOOK = Path(__file__).parents[2] / "book"
sys.path.insert(0, str(BOOK / "_ext"))  # where the extension `drawing` is

STYLE = (BOOK / "_static" / "drawings.css").read_text("utf-8")
PAGES = {path.stem: path.read_text("utf-8") for path in sorted((BOOK / "chapters").glob("*.md"))}
CLASSES = {*kit.TONES, *kit.SIZES, "stroke", "head", "cell", "solid", "mark", "dashed"}
SMALLEST_PX = 12
LETTER = 0.66  # of the font's size: the mean width of a letter, bold ones included


def font_size(classes: str) -> float:
    """CSS pixels of a text with these classes, as the stylesheet has it."""
    sizes = dict(re.findall(r"\.drawing text(?:\.(\w+))? \{ font-size: ([\d.]+)px", STYLE))
    return float(next((sizes[one] for one in classes.split() if one in sizes), sizes[""]))


def whole_chunks(state: ElementTree.Element) -> int:
    """How many chunks of a state are filled over all of their cell's width."""
    rects = [(rect.get("class", ""), float(rect.get("width", "nan"))) for rect in state.iter("rect")]
    cell = max(width for _, width in rects)
    return sum(kind.endswith("solid") and width == cell for kind, width in rects)


@pytest.mark.parametrize("name", drawing_names())
def test_a_drawing_says_what_it_shows_and_has_no_colour_of_its_own(name: str) -> None:
    root = ElementTree.fromstring(draw(name))
    assert root.get("role") == "img" and len(root.get("aria-label", "").split()) > 8
    for element in (one for svg in svgs(name) for one in svg.iter()):
        assert not {"fill", "stroke", "style", "font-size", "id"} & element.attrib.keys()
        assert set(element.get("class", "").split()) <= CLASSES


@pytest.mark.parametrize("name", drawing_names())
def test_letters_are_readable_and_lie_inside(name: str) -> None:
    for svg in svgs(name):
        _, _, width, height = map(float, svg.get("viewBox", "").split())
        assert float(svg.get("width", 0)) == width <= kit.WIDEST
        for one in svg.iter("text"):
            size = font_size(one.get("class", ""))
            assert size >= SMALLEST_PX
            long = LETTER * size * len(one.text or "")
            left = float(one.get("x", 0)) - long * {"start": 0, "middle": 0.5, "end": 1}[one.get("text-anchor", "")]
            assert left >= -2 and left + long <= width + 2, one.text
            assert size * 0.7 <= float(one.get("y", 0)) <= height, one.text


def test_the_style_gives_every_class_a_colour_in_both_themes_and_in_print() -> None:
    blocks = re.findall(r"\.drawing \{\n(.*?)\n\s*\}", STYLE, re.S)
    names = [set(re.findall(r"--([\w-]+):", block)) for block in blocks]
    assert len(names) == 3 and names[0] == names[1] == names[2]
    assert set(re.findall(r"var\(--(?!pst)([\w-]+)\)", STYLE)) <= names[0]
    after = STYLE.split("figure.drawn {")[-1]
    assert not re.search(r"#[0-9a-f]{3,6}\b|rgb\(", after)
    assert all(f".{one}" in after for one in CLASSES - {"head"})


def test_every_drawing_is_shown_once_and_every_one_shown_is_referred_to() -> None:
    shown = []
    for page, text in PAGES.items():
        for name, label in re.findall(r"^```\{drawing\} (\S+)\n:name: (\S+)$", text, re.M):
            shown.append(name)
            assert f"{{numref}}`{label}`" in text, f"{page} does not refer to {label}"
    assert sorted(shown) == sorted(drawing_names())


def test_the_ring_s_chunks_fill_up_until_each_rank_has_one_whole_and_then_all() -> None:
    states = svgs("collectives.ring")[1:]
    assert [whole_chunks(state) for state in states] == [0, 0, 0, 4, 8, 12, 16]
    assert [sum(rect.get("class") == "mark" for rect in state.iter("rect")) for state in states] == [0, *[4] * 6]


def test_halving_and_doubling_draws_as_many_chunks_as_a_run_sends() -> None:
    p = 4
    ledger = run(all_reduce.halving_doubling, [torch.zeros(p, dtype=torch.uint8)] * p).ledger
    drawn = [
        sum(rect.get("class") == "mark" for rect in state.iter("rect"))
        for state in svgs("collectives.halving_doubling")
    ]
    sent = [sum(one.size_bytes for one in ledger.messages if one.start == step) for step in range(ledger.steps)]
    assert drawn == [0, *sent]
    *_, middle, last = svgs("collectives.halving_doubling")
    assert [whole_chunks(state) for state in (middle, last)] == [p * p // 2, p * p]


def test_a_cache_leaves_one_row_of_scores_and_groups_share_keys() -> None:
    without, cached = svgs("inference.attention_rows")
    assert [len(boxes(without, "orange")), len(boxes(cached, "blue")), len(boxes(cached, "quiet"))] == [21, 6, 15]
    kept = [
        (len(boxes(svg, "orange")), len(boxes(svg, "green")), len(boxes(svg, "violet")))
        for svg in svgs("inference.heads")
    ]
    assert kept == [(8, 8, 0), (2, 2, 0), (1, 1, 0), (0, 0, 1)]
    masked, _ = svgs("inference.window")
    assert len(boxes(masked, "blue")) == 1 + 2 + 3 + 4 * 6


def test_steps_of_chunks_are_as_wide_as_they_are_long() -> None:
    llama, on = preset("llama3-8b"), machine(device("H100"), "bf16")
    running = estimate_serving(llama, on, Layout(), batch=32, tokens=2048).bounds["decode"]
    prompt = estimate_serving(llama, on, Layout(), batch=1, tokens=8192).bounds["prefill"]
    whole, chunked = svgs("inference.chunks")
    ratio = (boxes(whole, "orange")[0] + 1) / (boxes(whole, "green")[0] + 1)
    assert ratio == pytest.approx((prompt.compute_s + running.compute_s) / running.memory_s, rel=0.01)
    pieces = boxes(chunked, "orange")
    assert len(pieces) == 8192 // 512
    assert sum(pieces) + len(pieces) == pytest.approx(boxes(whole, "orange")[0] + 1, rel=0.1)


def test_the_pages_of_a_text_are_those_that_the_cache_gave_it() -> None:
    tables, pool = svgs("inference.pages")
    numbers = [one.text for one in tables.iter("text")]
    texts = (
        Text("A", tuple(range(9)), 5),
        Text("B", (*range(8), 10, 11), 4, arrives=4),
        Text("C", (12, 13, 14), 9, arrives=6),
    )
    cache = Paged(Transformer(TransformerConfig("small", 1, 2, 1, 2, 32, 32)), pages=12, page=4)
    state = fillings(cache, 48, texts)[8]
    for text in "ABC":
        pages = {slot // 4: one.position for slot, one in reversed(list(enumerate(state.slots))) if text in one.holders}
        at = numbers.index(text) + 1
        assert numbers[at : at + len(pages)] == [str(page) for page in sorted(pages, key=lambda page: pages[page])]
    assert len(boxes(pool, "violet")) == 2 and len(boxes(pool, "quiet")) == 12 - state.held // 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: draw("collectives.rings"), "no such drawing: got collectives.rings"),
        (lambda: kit.panel(400, 10), "must fit a telephone: got 400 wide, expected at most 340"),
        (lambda: kit.text(0, 0, "a", "red"), "no such tone: got red"),
        (lambda: kit.text(0, 0, "a", size="huge"), "no such size of text: got huge"),
        (lambda: kit.arrow(0, 0, 10, 0, short=5), "longer than what is cut off"),
        (lambda: kit.drawing("", kit.panel(10, 10)), "says what it shows"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_line(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_words_are_escaped() -> None:
    assert "&lt;b&gt;" in kit.text(0, 0, "<b>")
    assert ElementTree.fromstring(kit.drawing('"a" < b', kit.panel(9, 9, title="x < y"))).get("aria-label") == '"a" < b'


def test_an_arrow_ends_where_it_is_told_to() -> None:
    arrow = ElementTree.fromstring(f"<g>{kit.arrow(0, 0, 100, 0, short=14)}</g>")
    points = next(arrow.iter("polygon")).get("points", "").split()
    assert points[0] == "86.0,0.0" and next(arrow.iter("path")).get("d", "").startswith("M14.0 0.0")


def build(folder: Path, page: str) -> tuple[str, str]:
    """HTML and warnings of a site of one page."""
    (folder / "index.md").write_text(page, "utf-8")
    warnings = io.StringIO()
    options = {"extensions": ["myst_parser", "drawing"], "numfig": True}
    with docutils_namespace(), patch_docutils():
        app = Sphinx(folder, None, folder / "html", folder / "trees", "html", options, status=None, warning=warnings)
        app.build()
    return (folder / "html" / "index.html").read_text("utf-8"), warnings.getvalue()


SHOWN = "# Title\n\nSee {numref}`rings`.\n\n```{drawing} collectives.ring\n:name: rings\nA *ring*.\n```\n"


def test_a_page_shows_a_drawing_as_a_numbered_figure_with_its_caption(tmp_path: Path) -> None:
    html, warnings = build(tmp_path, SHOWN)
    assert not warnings
    assert str(draw("collectives.ring")) in html
    assert re.search(r"<figcaption>.*Fig. 1 .*A <em>ring</em>\.", html, re.S)
    assert re.search(r'See <a [^>]*href="#rings".*Fig. 1', html)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("collectives.ring", "collectives.rung", "no such drawing: got collectives.rung"),
        ("A *ring*.\n", "A *ring*.\n\nAnd more.\n", "caption is one paragraph: collectives.ring"),
        ("A *ring*.\n", "", "Content block expected"),
    ],
)
def test_a_page_that_asks_wrongly_is_told(tmp_path: Path, old: str, new: str, message: str) -> None:
    _, warnings = build(tmp_path, SHOWN.replace(old, new))
    assert message in warnings
