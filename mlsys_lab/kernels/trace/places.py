"""Lines of a kernel as a person finds them."""

from __future__ import annotations

from typing import Any


def line_of(loader: Any, line: int) -> str:
    """A line by its number, and by its cell where a module was made of a notebook's exported cells.

    loader: the `__loader__` of the kernel's module; that of exported cells has the `artifact` that knows them.
    """
    place = getattr(getattr(loader, "artifact", None), "where", None)
    found = place(line) if place else None
    return f"cell {found.cell.number}, line {found.line}" if found else f"line {line}"
