"""Figures that cells show with `mlsys_lab.widgets.show` become SVG at build: see book/charts."""

from __future__ import annotations

import html
import json
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

from book.charts import chart

SHOWN = re.compile(
    r'<div class="mlsys-plot"[^>]* aria-label="(?P<alt>[^"]*)".*?'
    r'<script type="application/json">(?P<spec>.*?)</script>.*</div>',
    re.DOTALL,
)


def drawn(markup: str) -> str:
    """The markup of a cell's output with the chart in place of the figure's description."""
    return SHOWN.sub(lambda found: chart(json.loads(found["spec"]), html.unescape(found["alt"])), markup)


class DrawCharts(SphinxPostTransform):
    """Draws the charts of a page when it is written."""

    default_priority = 500  # after MyST-NB has chosen which output of a cell a page has

    def run(self, **kwargs: Any) -> None:
        """Replace the descriptions that a page holds."""
        for node in list(self.document.findall(nodes.raw)):
            if (markup := drawn(node.astext())) != node.astext():
                node.replace_self(nodes.raw("", markup, format="html"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the transform with Sphinx."""
    app.add_post_transform(DrawCharts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
