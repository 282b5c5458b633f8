"""Marks the cells of chapters that run in a reader's browser, and writes their code next to the page, as JSON.

_static/live.js puts the buttons on cells with the class `live`; it fetches the code when one is pressed.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from docutils import nodes
from execution import read_notebook
from sphinx.application import Sphinx

from book.files import write_if_changed
from book.live.cells import find_live_cells
from book.live.runtime import download_bytes
from book.project import STATIC


def mark(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Give a chapter's live cells their class and an id, and write their code."""
    size = download_bytes(STATIC)
    notebook = read_notebook(app.env, page) if size and page.startswith("chapters/") else None
    if notebook is None or app.builder.format != "html":
        return
    live = find_live_cells(notebook.cells)
    for cell in doctree.findall(nodes.container):
        if cell.get("nb_element") == "cell_code" and (index := cell["cell_index"]) in live:
            cell["ids"].append(f"cell-{index}")
            cell["classes"] += ["live"] if live[index].is_visible else []
    content = {"bytes": size, "cells": {index: asdict(cell) for index, cell in live.items()}}
    write_if_changed(Path(app.outdir) / f"{page}.cells.json", json.dumps(content).encode())


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the handler with Sphinx."""
    app.connect("doctree-resolved", mark)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
