"""What nbgrader's pages may show of a submission's Markdown: HTML in which nothing is live.

nbgrader passes `<script>` on, and formgrader runs on the server that can start kernels. So the filter that makes HTML
of Markdown in its pages is replaced by this one.
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
CHARACTERS = 20_000
"""Longest text that is rendered: nbconvert takes time with the square of some, and a second for one of this length."""
PROTOCOLS = ["data", "http", "https", "mailto"]


def render_markdown(source: str) -> str:
    """HTML of Markdown: what is not plain text markup is shown as it was typed.

    No scripts, no styles, no forms; no class or id, which the page's own script looks for; no pictures from elsewhere,
    which would tell who looks. A text that is too long is shown as it was typed.

    >>> render_markdown("*yes* <script>alert(1)</script>")
    '<p><em>yes</em> &lt;script&gt;alert(1)&lt;/script&gt;</p>'
    """
    if len(source) > CHARACTERS:
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
