"""A chapter's own cells, run as the site runs them, so that tests see what the reader sees."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import jupytext
import pytest

CHAPTERS = Path(__file__).parents[2] / "book" / "chapters"


class Page:
    """Every name that a page's cells define, and every number that its prose takes from them."""

    def __init__(self, name: str) -> None:
        self.names: dict[str, Any] = {"__name__": name}
        for number, cell in enumerate(jupytext.read(CHAPTERS / f"{name}.md").cells):
            if cell.cell_type == "code":
                source, file = cell.source + "\n", f"{name}.md, cell {number}"
                # As IPython does for its cells: Triton reads a kernel's source.
                linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
                exec(compile(source, file, "exec"), self.names)

    def __getattr__(self, name: str) -> Any:
        return self.names[name]


@pytest.fixture(scope="module")
def page(request: pytest.FixtureRequest) -> Page:
    """The page that the test module names as `PAGE`."""
    return Page(request.module.PAGE)
