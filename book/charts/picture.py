"""A chart's picture at one width: panels one below the other, each with its grid, series and the words beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from book.charts.axes import Axis, make_axis
from book.charts.figure import Figure, Series
from book.charts.marks import GAP, Frame, draw_bars, draw_series, list_bars
from book.drawings.kit import line, text

LETTER = 7.2  # width of a letter of small text, at most
NAME = 18  # height of a name that stands above its bars
ROW, STACKED_ROW = 17, 26  # heights of a bar
LEAST_HEIGHT, SLOPE = 230, 0.46  # height of a panel of lines: this, or a share of the width
PANEL_SHARE = 1.5  # of several panels, each has this times its share of the height
LEAST_LEFT = 50  # of what stands beside a chart
WIDEST_NAMES = 0.34  # of the width; wider names of bars stand above them


@dataclass(frozen=True)
class Panel:
    """What one panel draws: series, axes, its share of a whole panel's height, and room above bars for their names."""

    series: list[Series]
    x: Axis
    y: Axis
    share: float = 1.0
    above: float = 0.0

    @property
    def labels(self) -> list[str]:
        """What is written to the left of the panel."""
        return [] if self.above else self.y.categories or [word for _, word in self.y.ticks]


def draw_panels(figure: Figure, width: float) -> tuple[float, str]:
    """Draw a figure's panels at this width: the height that they take, and their pieces."""
    panels = [_panel(figure, name, width) for name in dict.fromkeys(one.yaxis for one in figure.series)]
    labels = [label for panel in panels for label in panel.labels]
    left = _label_width(labels) if labels else 2.0
    end, pieces = 0.0, ""
    for panel in panels:
        end, drawn = _draw_panel(figure, panel, width, left, end)
        pieces += drawn
    return end, pieces


def _panel(figure: Figure, name: str, width: float) -> Panel:
    """Make the panel of a vertical axis."""
    series = [one for one in figure.series if one.yaxis == name]
    if series[0].bar:
        xaxis, yaxis, series = _bar_axes(figure, series, width)
        narrow = bool(yaxis.categories) and _label_width(yaxis.categories) > WIDEST_NAMES * width
        return Panel(series, xaxis, yaxis, above=NAME if narrow else 0.0)
    low, high = figure.axis(name).get("domain", (0.0, 1.0))
    return Panel(series, *_line_axes(figure, series), share=min(1.0, PANEL_SHARE * (high - low)))


def _draw_panel(figure: Figure, panel: Panel, width: float, left: float, top: float) -> tuple[float, str]:
    """Draw a panel from `top` down; returns where it ends, and its pieces."""
    names, title = panel.y.categories, panel.x.title
    each = (ROW * len(panel.series) if figure.barmode == "group" else STACKED_ROW) + GAP + panel.above
    height = each * len(names) if names else panel.share * max(LEAST_HEIGHT, SLOPE * width)
    start = top + (26 if panel.y.title else 12)
    frame = Frame(left, start, width - 12, start + height, panel.x, panel.y)
    drawn = [
        *_grid(frame),
        *_marks(figure, frame, panel),
        *_across(figure, frame),
        *_words(frame, panel.above),
        text(0, top + 13, panel.y.title, "quiet", size="small", anchor="start"),
        text(frame.right, frame.bottom + 38, title, "quiet", size="small", anchor="end"),
    ]
    return frame.bottom + (46 if title else 28), "".join(drawn)


def _marks(figure: Figure, frame: Frame, panel: Panel) -> Iterator[str]:
    """Bars, or lines and points."""
    if panel.series[0].bar:
        yield from draw_bars(frame, panel.series, figure.barmode, panel.above)
    else:
        yield from (draw_series(frame, one) for one in panel.series)


def _bar_axes(figure: Figure, series: list[Series], width: float) -> tuple[Axis, Axis, list[Series]]:
    """Axes of bars, and the series as drawn: bars whose names are too long to stand side by side lie down."""
    one, lying = series[0], series[0].horizontal
    places = make_axis(figure.axis(one.yaxis if lying else one.xaxis), one.y if lying else one.x)
    reached = [bar.end for bar in list_bars(series, figure.barmode)] + [across.x for across in figure.across]
    values = make_axis(figure.axis(one.xaxis if lying else one.yaxis), reached, zero=True)
    if lying:
        return values, places, series
    names = places.categories
    if max(map(len, names)) * LETTER * len(names) < width - LEAST_LEFT:
        return places, values, series
    return values, replace(places, categories=names[::-1]), [replace(s, x=s.y, y=s.x, horizontal=True) for s in series]


def _line_axes(figure: Figure, series: Sequence[Series]) -> tuple[Axis, Axis]:
    """Axes of lines and points; the horizontal one shows what all panels show that share it."""
    root = _root(figure, series[0].xaxis)
    shared = [one for one in figure.series if _root(figure, one.xaxis) == root]
    xs = [value for one in shared for value in one.x] + [one.x for one in figure.across]
    x = make_axis(figure.axis(series[0].xaxis), xs, pad=any(one.marker for one in shared))
    return x, make_axis(figure.axis(series[0].yaxis), [value for one in series for value in one.y])


def _grid(frame: Frame) -> Iterator[str]:
    """Lines at the ticks."""
    for value, _ in frame.x.ticks:
        yield f'<path class="grid" d="M{frame.across(value):.1f} {frame.top:.1f}V{frame.bottom:.1f}"/>'
    for value, _ in frame.y.ticks:
        y = frame.bottom - frame.y.place(value) * (frame.bottom - frame.top)
        yield f'<path class="grid" d="M{frame.left:.1f} {y:.1f}H{frame.right:.1f}"/>'
    yield line(frame.left, frame.bottom, frame.right, frame.bottom)


def _words(frame: Frame, above: float) -> Iterator[str]:
    """What is written at ticks and bars."""
    for value, word in frame.x.ticks or [(name, name) for name in frame.x.categories]:
        yield text(frame.across(value), frame.bottom + 18, word, "quiet", size="small")
    for value, word in frame.y.ticks or [(name, name) for name in frame.y.categories]:
        y = frame.bottom - frame.y.place(value) * (frame.bottom - frame.top)
        if above:
            slot = (frame.bottom - frame.top) / len(frame.y.categories)
            yield text(frame.left, y - slot / 2 + NAME, word, "quiet", size="small", anchor="start")
        else:
            yield text(frame.left - 6, y + 4, word, "quiet", size="small", anchor="end")


def _across(figure: Figure, frame: Frame) -> Iterator[str]:
    """Lines across at one value, with their labels."""
    for one in figure.across:
        x = frame.across(one.x)
        yield f'<path class="plain {one.dash}" d="M{x:.1f} {frame.top:.1f}V{frame.bottom:.1f}"/>'
        left = x > (frame.left + frame.right) / 2
        yield text(x - 5 if left else x + 5, frame.top + 12, one.label, size="small", anchor="end" if left else "start")


def _root(figure: Figure, name: str) -> str:
    """The axis whose range this one has."""
    return str(figure.axis(name).get("matches", name))


def _label_width(labels: Sequence[str]) -> float:
    return 10 + LETTER * max(map(len, labels))
