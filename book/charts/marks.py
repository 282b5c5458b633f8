"""What charts draw between their axes: ways through points, markers, bars; and the sign of a series in the key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from book.charts.axes import Axis, number
from book.charts.figure import Series, Value

GAP = 12
"""Between the bars of two places."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Frame:
    """Where a panel's values lie on the picture, in units, and its two axes."""

    left: float
    top: float
    right: float
    bottom: float
    x: Axis
    y: Axis

    def at(self, x: Value, y: Value) -> Point:
        """The point of two values."""
        return self.across(x), self.bottom - self.y.place(y) * (self.bottom - self.top)

    def across(self, x: Value) -> float:
        """How far to the right a value lies."""
        return self.left + self.x.place(x) * (self.right - self.left)


@dataclass(frozen=True)
class Bar:
    """One bar: the series and the place that it belongs to, and the values where it starts and ends."""

    series: int
    place: Value
    start: float
    end: float


def draw_series(frame: Frame, series: Series) -> str:
    """Draw a series of lines or points, as far as they lie in the frame."""
    points = [frame.at(x, y) for x, y in zip(series.x, series.y, strict=True)]
    way = "".join(_way(part, series) for part in _within(points, frame)) if series.line else ""
    markers = "".join(
        _marker(series, point, f"{_word(x)}: {_word(y)}")
        for point, x, y in zip(points, series.x, series.y, strict=True)
        if series.marker and frame.top - 1 <= point[1] <= frame.bottom + 1
    )
    return way + markers


def list_bars(series: Sequence[Series], barmode: str) -> list[Bar]:
    """Bars of all series: stacked on those before, or each from its base, 0 if it has none."""
    bars, reached = [], dict[Value, float]()
    for k, one in enumerate(series):
        values, places = (one.x, one.y) if one.horizontal else (one.y, one.x)
        for i, (value, place) in enumerate(zip(values, places, strict=True)):
            start = one.base[i] if one.base else reached.get(place, 0.0) if barmode == "stack" else 0.0
            reached[place] = start + float(value)
            bars.append(Bar(k, place, start, reached[place]))
    return bars


def draw_bars(frame: Frame, series: Sequence[Series], barmode: str, above: float) -> Iterator[str]:
    """Draw bars of all series; above: what is kept free over those of each place, for its name."""
    lying = bool(frame.y.categories)
    count = len(frame.y.categories or frame.x.categories)
    slot = (frame.bottom - frame.top if lying else frame.right - frame.left) / count
    side = len(series) if barmode == "group" else 1
    thick = (slot - GAP - above) / side
    for bar in list_bars(series, barmode):
        offset = -slot / 2 + GAP / 2 + above + thick * (bar.series % side)
        if lying:
            x, y = frame.across(bar.start), frame.at(bar.start, bar.place)[1] + offset
            width, height = frame.across(bar.end) - x, thick
        else:
            x, y = frame.across(bar.place) + offset, frame.at(bar.place, bar.end)[1]
            width, height = thick, frame.at(bar.place, bar.start)[1] - y
        one = series[bar.series]
        said = f"{bar.place}, {one.name}: {_word(bar.end - bar.start)}"
        size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        yield f'<rect class="{one.tone} solid" {size}><title>{said}</title></rect>'


def draw_key(series: Series) -> str:
    """The sign of a series in the key above the chart."""
    if series.bar:
        sign = f'<rect class="{series.tone} solid" x="5" y="1" width="12" height="12" rx="2"/>'
    else:
        sign = _way([(0, 7), (22, 7)], series) if series.line else ""
        sign += _marker(series, (11, 7)) if series.marker else ""
    return f'<svg viewBox="0 0 22 14" width="22" height="14" aria-hidden="true">{sign}</svg>'


def _within(points: Sequence[Point], frame: Frame) -> Iterable[list[Point]]:
    """Parts of a way that lie between top and bottom, cut where it crosses these."""
    part: list[Point] = []
    for (x1, y1), (x2, y2) in pairwise(points):
        cuts = [(edge - y1) / (y2 - y1) for edge in (frame.top, frame.bottom) if y1 != y2]
        steps = sorted({0.0, 1.0, *(cut for cut in cuts if 0 < cut < 1)})
        for start, end in pairwise(steps):
            a, b = ((x1 + t * (x2 - x1), y1 + t * (y2 - y1)) for t in (start, end))
            if frame.top - 1 <= (a[1] + b[1]) / 2 <= frame.bottom + 1:
                part += [b] if part else [a, b]
            elif part:
                yield part
                part = []
    if part:
        yield part


def _way(points: Sequence[Point], series: Series) -> str:
    way = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path class="{f"{series.tone} {series.dash}".strip()} way" d="M{way}"/>'


def _marker(series: Series, point: Point, value: str = "") -> str:
    """The series' sign at a point, with the value that a pointer over it shows."""
    x, y = point
    said = f"<title>{value}</title>" if value else ""
    if series.marker == "circle":
        return f'<circle class="{series.tone}" cx="{x:.1f}" cy="{y:.1f}" r="4">{said}</circle>'
    way = {"diamond": f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z", "x": f"M{x - 4.5:.1f} {y - 4.5:.1f}l9 9m0 -9l-9 9"}
    return f'<path class="{series.tone} {series.marker}" d="{way[series.marker]}">{said}</path>'


def _word(value: Value) -> str:
    return value if isinstance(value, str) else number(float(f"{value:.3g}"))
