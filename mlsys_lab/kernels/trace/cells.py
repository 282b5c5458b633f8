"""Source lines of a kernel by notebook cell, if the kernel comes from a notebook."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.events import Site, Trace


class KernelError(InputError):
    """An error at a source line of a kernel: `problem` at `file` and `line`, all three in the message."""

    def __init__(self, file: str, line: int, problem: str, *, help: str = "") -> None:
        self.file, self.line, self.problem = file, line, problem
        super().__init__(f"{file}:{line}: {problem}", help=help)


@dataclass(frozen=True, order=True)
class CellSite(Site):
    """A source line in a cell of a saved notebook; `file` is the cell, `line` counts within it."""

    def __str__(self) -> str:
        return f"{self.file}, {super().__str__()}"


def locate_in_cell(site: Site, loader: Any) -> Site:
    """Locate a source line in its notebook cell if the module was made of exported cells; else return the site itself.

    loader: the `__loader__` of the kernel's module; for exported cells it has an `artifact` that maps lines to cells.
    """
    where = getattr(getattr(loader, "artifact", None), "where", None)
    found = where(site.line) if where else None
    return CellSite(f"cell {found.cell.number}", found.line, found.text.strip()) if found else site


def locate_in_cells(trace: Trace, artifact: Any) -> Trace:
    """Return the trace with its source lines located in notebook cells where possible."""
    loader = getattr(artifact, "__loader__", None)
    return replace(trace, sites=tuple(locate_in_cell(site, loader) for site in trace.sites))
