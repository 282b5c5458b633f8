"""Typed wrappers of the nbformat functions that the grader uses; nbformat has no types.

Import this before anything that imports nbformat or jsonschema: see below.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# Without this module jsonschema skips checks of international URIs, which are not needed here; building its
# grammar takes a second, more than half of nbgrader's import time.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

import nbformat  # noqa: E402

Notebook = Any
Cell = Any


def new_notebook(metadata: dict[str, Any]) -> Notebook:
    return nbformat.v4.new_notebook(metadata=copy_node(metadata))  # type: ignore[no-untyped-call]


def new_cell(kind: str, source: str, cell_id: str) -> Cell:
    """Make a code or markdown cell without metadata."""
    make = nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell
    return make(source, id=cell_id)  # type: ignore[no-untyped-call]


def new_output(kind: str, **fields: Any) -> Any:
    """Make an output of a code cell from its kind and fields."""
    return nbformat.v4.new_output(kind, **fields)  # type: ignore[no-untyped-call]


def copy_node(value: dict[str, Any]) -> Any:
    """Copy plain JSON values deeply into nodes with attribute access."""
    return nbformat.from_dict(json.loads(json.dumps(value)))  # type: ignore[no-untyped-call]


def read_notebook(path: Path) -> Notebook:
    """Read a notebook that the grader itself wrote."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def to_bytes(notebook: Notebook) -> bytes:
    """Serialise a valid notebook: sorted keys, lines as lists, a final newline."""
    nbformat.validate(notebook)
    return f"{nbformat.writes(notebook, version=nbformat.NO_CONVERT)}\n".encode()  # type: ignore[no-untyped-call]
