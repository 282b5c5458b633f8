"""A lab's summary as one HTML page: inline SVG plots, no script, nothing loaded, light and dark themes."""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_grader.reports.summary import Summary
from mlsys_grader.reports.webpage import render_webpage

BAR_WIDTH, BAR_HEIGHT = 56, 150
LEFT, TOP = 20, 24
MAX_FAILURES = 3
"""Failures listed per check."""


@dataclass(frozen=True)
class Bar:
    """One bar of a histogram in SVG units: left and upper edge, height, and the count above it."""

    left: int
    top: float
    height: float
    count: int


@dataclass(frozen=True)
class Histogram:
    """Students per tenth of the points as an SVG; bars stand on `base` from `left` to `right`.

    `ticks` are pairs (position, points); `counts` are triples (from, to, students) for screen readers.
    """

    bars: tuple[Bar, ...]
    bar_width: int
    left: int
    right: int
    base: int
    ticks: tuple[tuple[int, float], ...]
    counts: tuple[tuple[float, float, int], ...]


def render_summary(summary: Summary) -> str:
    """HTML of the class report. Everything from a submission is escaped."""
    return render_webpage(
        "summary.html",
        summary=summary,
        histogram=lay_out_histogram(summary),
        shown=MAX_FAILURES,
        longest_s=max((time_s for _, time_s in summary.slowest), default=0.0) or 1.0,
    )


def lay_out_histogram(summary: Summary) -> Histogram:
    """Place a bar per bin, and a tick at every second border."""
    most, step = max(summary.bins), summary.points / len(summary.bins)
    bars = []
    for number, count in enumerate(summary.bins):
        height = BAR_HEIGHT * count / most
        top = TOP + BAR_HEIGHT - height
        bars.append(Bar(LEFT + number * BAR_WIDTH, top, height, count))
    return Histogram(
        bars=tuple(bars),
        bar_width=BAR_WIDTH,
        left=LEFT,
        right=LEFT + BAR_WIDTH * len(bars),
        base=TOP + BAR_HEIGHT,
        ticks=tuple((LEFT + number * BAR_WIDTH, number * step) for number in range(0, len(bars) + 1, 2)),
        counts=tuple((n * step, (n + 1) * step, count) for n, count in enumerate(summary.bins) if count),
    )
