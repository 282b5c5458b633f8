"""Plotly figures: live notebooks draw them with their own Plotly, and a build of the site as SVG."""

from __future__ import annotations

import html
import json
import sys
from typing import Any

from IPython.display import display

from mlsys_lab.widgets.page import script_json

INK, LINES, CLEAR = "#757b83", "rgba(128, 128, 128, 0.35)", "rgba(0, 0, 0, 0)"
AXIS = {"gridcolor": LINES, "zerolinecolor": LINES, "linecolor": LINES, "automargin": True}
ANY_BACKGROUND = {
    "paper_bgcolor": CLEAR,
    "plot_bgcolor": CLEAR,
    "font": {"color": INK, "size": 14},
    "colorway": ["#3f7fe0", "#c9621f", "#2f8f5b", "#9a62c4", "#96790a", "#727d8a"],
    "xaxis": AXIS,
    "yaxis": AXIS,
    "shapedefaults": {"line": {"color": INK}},
    "annotationdefaults": {"arrowcolor": INK},
}
"""Plotly layout for notebooks: colours that are visible on light and dark backgrounds."""


def show(figure: Any, *, alt: str, height: int = 420) -> None:
    """Display a Plotly figure; the site sets theme, background, width and legend.

    alt: what the figure shows, in a sentence, for screen readers; height: in CSS pixels.
    """
    figure.update_layout(height=height, template={"layout": ANY_BACKGROUND})
    # Colab's front end draws neither Plotly's MIME type nor our markup; Plotly knows how to reach it.
    if "google.colab" in sys.modules:
        figure.show()
        return
    spec = json.loads(figure.to_json())
    # The site has its own light and dark looks in place of the template, which is most of a small figure's size.
    site = {"data": spec["data"], "layout": {k: v for k, v in spec["layout"].items() if k != "template"}}
    if not spec["layout"].get("title"):  # Plotly's 100 px for a title stay empty; the site has its own margins
        spec["layout"]["margin"] = {"t": 30} | spec["layout"].get("margin", {})
    markup = (
        f'<div class="mlsys-plot" role="img" aria-label="{html.escape(alt)}" style="min-height:{height}px">'
        f'<script type="application/json">{script_json(site)}</script>'
        f"<noscript><p>{html.escape(alt)}</p></noscript></div>"
    )
    display(  # type: ignore[no-untyped-call]
        {"application/vnd.plotly.v1+json": spec, "text/html": markup, "text/plain": alt}, raw=True
    )
