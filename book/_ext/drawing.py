"""The directive {drawing}: a drawing of book/drawings as a numbered figure, with its caption as content.

    ```{drawing} collectives.ring
    :name: ring
    What the reader should see in it.
    ```

`{numref}`ring`` refers to it by number.
"""

from __future__ import annotations

from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book.drawings import draw
from book.project import BOOK
from mlsys_lab.errors import CourseError


class DrawingDirective(SphinxDirective):
    """A drawing by its name, with a caption; both are required."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {"name": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Return the figure of the drawing."""
        try:
            drawn = draw(self.arguments[0])
        except CourseError as error:
            raise self.error(str(error)) from error
        self.assert_has_content()
        for path in sorted((BOOK / "drawings").glob("*.py")):
            self.env.note_dependency(str(path))
        parsed = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, parsed)
        if len(parsed) != 1 or not isinstance(parsed[0], nodes.paragraph):
            raise self.error(f"a drawing's caption is one paragraph: {self.arguments[0]}")
        caption = nodes.caption("", "", *parsed[0].children)
        self.set_source_info(caption)
        figure = nodes.figure("", nodes.raw("", str(drawn), format="html"), caption, classes=["drawn"])
        self.set_source_info(figure)
        self.add_name(figure)
        return [figure]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive with Sphinx."""
    app.add_directive("drawing", DrawingDirective)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
