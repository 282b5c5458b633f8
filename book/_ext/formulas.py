"""Sphinx's renderer of formulas: book/mathematics.py sets all of the book's in one go, before pages are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.writers.html5 import HTML5Translator

from book.files import write_if_changed
from book.mathematics import Formula, Typeset, typeset

STYLE = "mathematics.css"


def formula(node: nodes.math | nodes.math_block) -> Formula:
    """The formula of a node; several lines without an environment of their own are aligned at their `&`."""
    tex = node.astext().strip()
    if isinstance(node, nodes.math):
        return tex, False
    if r"\\" in tex and not node["nowrap"]:
        return rf"\begin{{split}}{tex}\end{{split}}", True
    return tex, True


class Renderer:
    """Sets formulas when all pages have been read, and puts them into pages as these are written."""

    def __init__(self) -> None:
        self._set = Typeset({}, "")

    def typeset_book(self, app: Sphinx, env: BuildEnvironment) -> None:
        """Set the formulas of all pages, those that need no writing too: one style sheet is for all."""
        pages = map(env.get_doctree, env.found_docs)
        self._set = typeset(
            {
                formula(node)
                for page in pages
                for node in page.findall(lambda node: isinstance(node, nodes.math | nodes.math_block))
            }
        )

    def write_style(self, app: Sphinx, error: Exception | None) -> None:
        """Write the formulas' style sheet beside the folder of their fonts."""
        if error is None:
            write_if_changed(Path(app.outdir) / "_static" / STYLE, self._set.css.encode())

    def visit_inline(self, translator: HTML5Translator, node: nodes.math) -> None:
        """Write a formula within a line."""
        self._write(translator, node, "span")

    def visit_display(self, translator: HTML5Translator, node: nodes.math_block) -> None:
        """Write a formula on lines of its own."""
        self._write(translator, node, "div")

    def _write(self, translator: HTML5Translator, node: nodes.math | nodes.math_block, tag: str) -> None:
        start = translator.starttag(node, tag, "", CLASS="math notranslate nohighlight")
        translator.body.append(f"{start}{self._set.html[formula(node)]}</{tag}>")
        raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer, which `html_math_renderer` names, with Sphinx."""
    renderer = Renderer()
    app.add_html_math_renderer("typeset", (renderer.visit_inline, None), (renderer.visit_display, None))
    app.connect("env-updated", renderer.typeset_book)
    app.connect("build-finished", renderer.write_style)
    app.add_css_file(STYLE)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
