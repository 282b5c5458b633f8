"""Pieces of explanatory drawings: text, boxes, ranks, arrows, rows of chunks; panels of them, and the drawing itself.

Every piece is a pure function that returns SVG text. Nothing here knows a colour: pieces carry classes, and
_static/drawings.css gives each a colour in both themes and in print. One unit is one CSS pixel on every screen: a panel
is at most `WIDEST` wide, which fits a telephone of 390 px, and on wider screens panels stand side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from mlsys_lab.errors import InputError

WIDEST = 340
RADIUS = 14  # of a rank's circle
TONES = ("plain", "quiet", "blue", "orange", "green", "violet")
"""What a piece may look like: neutral, in the background, or one of four colours. Chunk i takes CHUNKS[i]."""
CHUNKS = ("blue", "orange", "green", "violet")
SIZES = ("small", "strong")


@dataclass(frozen=True)
class Panel:
    """One picture of a drawing: its size in units, its pieces, and a title that stands above it."""

    width: float
    height: float
    pieces: tuple[str, ...]
    title: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.width <= WIDEST or not self.height > 0:
            raise InputError("a panel must fit a telephone", got=f"{self.width} wide", expected=f"at most {WIDEST}")

    def svg(self) -> str:
        """The panel as an SVG element; what it shows is said once, by its drawing."""
        size = f'viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}"'
        title = f'<span class="drawing-title">{escape(self.title)}</span>' if self.title else ""
        return f'<span class="drawing-panel">{title}<svg {size} aria-hidden="true">{"".join(self.pieces)}</svg></span>'


def panel(width: float, height: float, *pieces: str | Iterable[str], title: str = "") -> Panel:
    """Make a panel of pieces; lists of pieces are taken apart."""
    flat = [piece for one in pieces for piece in ((one,) if isinstance(one, str) else one)]
    return Panel(width, height, tuple(flat), title)


def drawing(alt: str, *panels: Panel) -> Markup:
    """Put panels together into a drawing; `alt` says in words what it shows, to those who cannot see it."""
    if not alt or not panels:
        raise InputError("a drawing has a panel and says what it shows", got=f"{len(panels)} panels, alt={alt!r}")
    inside = "".join(one.svg() for one in panels)
    return Markup(f'<div class="drawing" role="img" aria-label="{escape(alt)}">{inside}</div>')


def text(x: float, y: float, words: object, tone: str = "plain", *, size: str = "", anchor: str = "middle") -> str:
    """Words with their baseline at y. size: "small", "strong" (bold) or neither; anchor: what of them is at x."""
    kind = f"{_known(tone)} {size}".strip()
    if size and size not in SIZES:
        raise InputError("no such size of text", got=size, expected=" or ".join(SIZES))
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, label: object = "", tone: str = "plain") -> str:
    """A rounded box with words in its middle."""
    shape = f'<rect class="{_known(tone)}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5"/>'
    return shape + (text(x + width / 2, y + height / 2 + 5, label, size="small") if label != "" else "")


def dashed(x: float, y: float, width: float, height: float, tone: str = "plain") -> str:
    """A dashed outline: where something was."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{_known(tone)} dashed" {place} rx="2"/>'


def rank(x: float, y: float, number: object, tone: str = "plain") -> str:
    """A rank as a circle with its number, around (x, y)."""
    return f'<circle class="{_known(tone)}" cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}"/>' + text(
        x, y + 5, number, size="strong"
    )


def line(x1: float, y1: float, x2: float, y2: float, tone: str = "quiet") -> str:
    """A thin line."""
    return f'<path class="{_known(tone)}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def arrow(
    x1: float, y1: float, x2: float, y2: float, tone: str = "plain", *, short: float = 0.0, bend: float = 0.0
) -> str:
    """An arrow from (x1, y1) to (x2, y2); `short` cuts both ends, as where ranks stand; `bend` bows it to its left."""
    middle_x, middle_y = (x1 + x2) / 2, (y1 + y2) / 2
    length = math.hypot(x2 - x1, y2 - y1)
    if not length > 2 * short:
        raise InputError("an arrow must be longer than what is cut off", got=f"{length:g} and twice {short:g}")
    control = (middle_x + bend * (y2 - y1) / length, middle_y - bend * (x2 - x1) / length)
    start, end = _toward((x1, y1), control, short), _toward((x2, y2), control, short)
    back = math.atan2(control[1] - end[1], control[0] - end[0])
    wings = " ".join(
        f"{end[0] + 8 * math.cos(back + turn):.1f},{end[1] + 8 * math.sin(back + turn):.1f}" for turn in (0.42, -0.42)
    )
    stem = _toward(end, control, 6)
    kind = _known(tone)
    return (
        f'<path class="{kind} stroke" d="M{start[0]:.1f} {start[1]:.1f}Q{control[0]:.1f} {control[1]:.1f} '
        f'{stem[0]:.1f} {stem[1]:.1f}"/><polygon class="{kind} head" points="{end[0]:.1f},{end[1]:.1f} {wings}"/>'
    )


def chunk_row(
    x: float, y: float, filled: Sequence[float], *, width: float = 26, height: float = 20, marked: Sequence[int] = ()
) -> str:
    """An array in chunks, each filled from the left to a share of its cell; chunks in `marked` are outlined."""
    pieces = []
    for i, share in enumerate(filled):
        left, tone = x + i * (width + 2), CHUNKS[i % len(CHUNKS)]
        pieces.append(
            f'<rect class="cell" x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
            f'<rect class="{tone} solid" x="{left:.1f}" y="{y:.1f}" width="{share * width:.1f}" height="{height:.1f}"/>'
        )
    for i in marked:
        left = x + i * (width + 2)
        pieces.append(
            f'<rect class="mark" x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1"/>'
        )
    return "".join(pieces)


def cells(
    x: float, y: float, rows: int, columns: int, tone: Callable[[int, int], str], *, size: float = 14, gap: float = 2
) -> list[str]:
    """A table of small squares, in tones by row and column; an empty tone leaves its place free."""
    return [
        f'<rect class="{_known(kind)}" x="{x + j * (size + gap):.1f}" y="{y + i * (size + gap):.1f}" '
        f'width="{size:.1f}" height="{size:.1f}" rx="2"/>'
        for i in range(rows)
        for j in range(columns)
        if (kind := tone(i, j))
    ]


def curve(points: Sequence[tuple[float, float]], tone: str = "plain") -> str:
    """A line through all points, in order."""
    way = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path class="{_known(tone)} stroke" d="M{way}"/>'


def on_circle(count: int, x: float, y: float, radius: float) -> list[tuple[float, float]]:
    """Places of `count` ranks on a circle around (x, y), clockwise from the top."""
    angles = [2 * math.pi * i / count for i in range(count)]
    return [(x + radius * math.sin(angle), y - radius * math.cos(angle)) for angle in angles]


def _toward(start: tuple[float, float], end: tuple[float, float], distance: float) -> tuple[float, float]:
    length = math.dist(start, end) or 1.0
    return start[0] + (end[0] - start[0]) * distance / length, start[1] + (end[1] - start[1]) * distance / length


def _known(tone: str) -> str:
    if tone not in TONES:
        raise InputError("no such tone", got=tone, expected=", ".join(TONES))
    return tone
