"""Keep a number and its unit on one line: "66 %" and "80 GB" have a no-break space on the site."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

_UNIT = re.compile(r"(?<=\d) (?=%|(?:[kMGTP]i?B(?:/s)?|[mµn]?s|[MGTP]?FLOPs?(?:/s)?|[kMG]?W|[MG]Hz)\b)")
_AS_IT_IS = (nodes.literal, nodes.literal_block, nodes.raw, nodes.math, nodes.math_block)
LAST = 950
"""After the search index has read the page, as Sphinx counts priorities."""


def bind(text: str) -> str:
    """Put a no-break space between each number and its unit.

    >>> bind("66 % of 80 GB in 3 steps").split(" ")
    ['66\\xa0%', 'of', '80\\xa0GB', 'in', '3', 'steps']
    """
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def bind_page(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Bind the numbers of a page's prose."""
    for parent in doctree.findall(nodes.Element):
        for place, node in enumerate(parent.children):
            if not isinstance(node, nodes.Text) or isinstance(parent, _AS_IT_IS):
                continue
            before = parent[place - 1].astext()[-1:] if place else ""  # a value that a cell has put into the prose
            if (text := bind(before + node)[len(before) :]) != node:
                parent[place] = nodes.Text(text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the handler with Sphinx."""
    app.connect("doctree-resolved", bind_page, priority=LAST)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
