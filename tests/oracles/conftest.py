"""A chapter's own cells, run as the site runs them, so that tests see what the reader sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jupytext
import pytest

CHAPTERS = Path(__file__).parents[2] / "book" / "chapters"


class Page:
    """Every name that a page's cells define, and every number that its prose takes from them."""

    def __init__(self, name: str) -> None:
        self.names: dict[str, Any] = {"__name__": name}
        for cell in jupytext.read(CHAPTERS / f"{name}.md").cells:
            if cell.cell_type == "code":
                exec(compile(cell.source, f"{name}.md", "exec"), self.names)

    def __getattr__(self, name: str) -> Any:
        return self.names[name]


@pytest.fixture(scope="module")
def page(request: pytest.FixtureRequest) -> Page:
    """The page that the test module names as `PAGE`."""
    return Page(request.module.PAGE)
