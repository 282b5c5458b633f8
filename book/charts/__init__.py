"""Charts of the chapters as SVG: `chart(spec, alt)` draws what a cell has made with Plotly, which no page then loads.

`figure` reads Plotly's description of lines, points and bars, `axes` places values and chooses ticks, `marks` draws the
series and `picture` what is around them, with the pieces and colours of the drawings: once wide and once for a
telephone; a page shows the one that fits.
"""

from __future__ import annotations

from typing import Any

from markupsafe import Markup, escape

from book.charts.figure import read_figure
from book.charts.marks import draw_key
from book.charts.picture import draw_panels

WIDTHS = {"wide": 680, "narrow": 330}
"""Widths of the two pictures in CSS pixels; a unit of theirs is one."""


def chart(spec: dict[str, Any], alt: str) -> Markup:
    """Draw a figure as HTML with inline SVG: its title, a key of more than one series, and the picture at both widths.

    spec: Plotly's JSON, `data` and `layout`; alt: what it shows, in words. InputError for what charts cannot draw.
    """
    figure = read_figure(spec)
    title = f'<p class="chart-title">{escape(figure.title)}</p>' if figure.title else ""
    named = [one for one in figure.series if one.in_key]
    key = "".join(f'<span class="chart-key">{draw_key(one)}{escape(one.name)}</span>' for one in named)
    keys = f'<p class="chart-keys">{key}</p>' if len(named) > 1 else ""
    pictures = ""
    for kind, width in WIDTHS.items():
        height, pieces = draw_panels(figure, width)
        size = f'viewBox="0 0 {width} {height:.0f}" width="{width}"'
        pictures += f'<svg class="chart-{kind}" {size} aria-hidden="true">{pieces}</svg>'
    return Markup(f'<div class="drawing chart" role="img" aria-label="{escape(alt)}">{title}{keys}{pictures}</div>')
