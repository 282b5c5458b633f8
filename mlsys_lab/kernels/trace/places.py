"""Lines of a kernel as a person finds them: by the cells of a notebook, where the kernel comes from one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mlsys_lab.kernels.trace.events import Site, Trace


@dataclass(frozen=True, order=True)
class CellSite(Site):
    """A place in a cell of a saved notebook; `file` is the cell, `line` counts within it."""

    def __str__(self) -> str:
        return f"{self.file}, {super().__str__()}"


def in_cell(site: Site, loader: Any) -> Site:
    """The place of a source line in its cell, where the module was made of exported cells; else the site itself.

    loader: the `__loader__` of the kernel's module; that of exported cells has the `artifact` that knows them.
    """
    where = getattr(getattr(loader, "artifact", None), "where", None)
    found = where(site.line) if where else None
    return CellSite(f"cell {found.cell.number}", found.line, found.text.strip()) if found else site


def in_cells(trace: Trace, artifact: Any) -> Trace:
    """The trace of a kernel with all of its places given by cells, where they are in cells."""
    loader = getattr(artifact, "__loader__", None)
    return replace(trace, sites=tuple(in_cell(site, loader) for site in trace.sites))
