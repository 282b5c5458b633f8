"""What a page loads before it is painted: one style sheet, pruned, and no script that waits for the network.

Sphinx, the theme and its extensions ask for 14 style sheets and 8 scripts, each of which a browser would wait for.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from book.files import tree_hash, write_if_changed
from book.icons import masks
from book.stylesheet import bundle, page_words, prune

SHEET = "site.css"
THEME = ("styles/theme.css", "styles/pydata-sphinx-theme.css")
"""What the theme's own templates load before all others."""
ICONS = "scripts/fontawesome.js"
"""The theme's icons as paths: 1.5 MB, of which pages need some twenty icons."""
VIEWPORT = re.compile(r'<meta name="viewport"[^>]*>')
"""A tag of docutils, which the theme has too."""
LAST = 900
"""After other extensions, as Sphinx counts priorities."""


class Head:
    """Keeps the style sheets that pages ask for in one, and lets scripts wait until a page is read."""

    def __init__(self) -> None:
        self._version = ""

    def lighten(
        self, app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
    ) -> None:
        """Take a page's style sheets out of its head, and put off its scripts."""
        self._version = self._version or tree_hash(_sheets(app), Path(app.outdir))
        context["css_files"] = []
        context["metatags"] = VIEWPORT.sub("", context.get("metatags", ""))
        context["sheet"], context["sheet_version"] = f"_static/{SHEET}", self._version
        context["script_files"] = [one for one in context["script_files"] if one.filename]
        for script in context["script_files"]:
            if script.attributes.get("type") != "module":
                script.attributes["defer"] = "defer"

    def write_sheet(self, app: Sphinx, error: Exception | None) -> None:
        """Write the style sheet for the pages that there are."""
        if error or app.builder.format != "html":
            return
        static, pages = Path(app.outdir) / "_static", list(Path(app.outdir).rglob("*.html"))
        scripts = {*static.glob("*.js"), *static.glob("scripts/*.js")} - {static / ICONS}
        words = page_words(pages, scripts)
        css = bundle(static, [sheet.relative_to(static).as_posix() for sheet in _sheets(app)])
        icons = masks((static / ICONS).read_text(encoding="utf-8"), words)
        write_if_changed(static / SHEET, f"{prune(css, words)}\n{icons}".encode())


def _sheets(app: Sphinx) -> list[Path]:
    """The style sheets that every page asks for, in their order."""
    asked = sorted(app.builder._css_files, key=lambda sheet: sheet.priority)  # type: ignore[attr-defined]
    names = dict.fromkeys([*THEME, *(str(one.filename).removeprefix("_static/") for one in asked)])
    paths = [Path(app.outdir) / "_static" / name for name in names]
    return [path for path in paths if path.is_file()]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    head = Head()
    app.connect("html-page-context", head.lighten, priority=LAST)
    app.connect("build-finished", head.write_sheet, priority=LAST)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
