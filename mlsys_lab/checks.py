"""The line of every notebook, `from mlsys_lab.checks import lab`, without an import of the package that defines checks.

`mlsys_lab` finds them by the entry points of the group `mlsys_lab.checks` in pyproject.toml.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from mlsys_lab.errors import MissingToolError


def find(name: str) -> EntryPoint:
    """Find an entry point of the checks: `lab`, or the module of the command `mlsys-lab check`.

    Raises:
        MissingToolError: this environment has no checks, because it was installed before they had entry points.
    """
    found = entry_points(group=__name__, name=name)
    if not found:
        raise MissingToolError("no checks are installed", help="pip install --force-reinstall --no-deps mlsys-lab")
    return found[name]


def __getattr__(name: str) -> Any:
    if name != "lab":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return find(name).load()
