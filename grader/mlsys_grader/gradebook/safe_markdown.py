"""Render a submission's Markdown safely for nbgrader's pages.

nbgrader passes `<script>` through, and formgrader runs on the server that can start kernels. This filter replaces the
one that its pages use.
"""

from __future__ import annotations

from html import escape

import bleach  # type: ignore[import-untyped]
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

# fmt: off
TAGS = {
    "a", "abbr", "b", "blockquote", "br", "code", "dd", "del", "div", "dl", "dt", "em", "h1", "h2",
    "h3", "h4", "h5", "h6", "hr", "i", "img", "kbd", "li", "ol", "p", "pre", "s", "span",
    "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul",
}
# fmt: on
ATTRIBUTES = {"a": ["href", "title"], "abbr": ["title"], "img": ["alt", "src", "title"], "ol": ["start"]}
MAX_CHARACTERS = 20_000
"""Longest text that is rendered: nbconvert's time can grow quadratically, to a second at this length."""
PROTOCOLS = ["data", "http", "https", "mailto"]


def render_markdown(source: str) -> str:
    """Render Markdown as HTML; anything beyond plain text markup is shown as typed.

    No scripts, styles or forms; no class or id, which the page's own script uses; no external images, which would
    reveal the reader. A text that is too long is shown as typed.

    >>> render_markdown("*yes* <script>alert(1)</script>")
    '<p><em>yes</em> &lt;script&gt;alert(1)&lt;/script&gt;</p>'
    """
    if len(source) > MAX_CHARACTERS:
        return f"<pre>{escape(source)}</pre>"
    html = MarkdownWithMath(renderer=IPythonRenderer(escape=False, exclude_anchor_links=True)).render(source)
    html = bleach.clean(html, tags=TAGS, attributes=_allowed, protocols=PROTOCOLS)
    return str(html).strip()


def _allowed(tag: str, name: str, value: str) -> bool:
    if tag == "img" and name == "src":
        return value.startswith(("data:image/png;", "data:image/jpeg;", "data:image/gif;"))
    if tag == "a" and name == "href":
        return not value.startswith("data:")
    return name in ATTRIBUTES.get(tag, ())
