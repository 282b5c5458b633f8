"""What each lab checks, and how. In a notebook: `check = lab("autograd")`, then `check("value_add")`.

Each lab has a module here, named after its topic, that defines `LAB`; `labs()` finds them.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlsys_lab.checks.spec import Case, Check, Lab, Mismatch
from mlsys_lab.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from mlsys_lab.checks.live import LiveChecks

__all__ = ["Case", "Check", "Lab", "Mismatch", "lab", "labs", "load_lab", "topics"]

TOPIC = re.compile(r"[a-z][a-z0-9-]*")
DEFINES_LAB = re.compile(r"^LAB\b[^=\n]*=", re.MULTILINE)


def topics() -> tuple[str, ...]:
    """Topics that have checks, by their modules' text: nothing is imported."""
    here = Path(__file__).parent
    modules = {path.stem: path for path in here.glob("*.py")} | {p.parent.name: p for p in here.glob("*/__init__.py")}
    return tuple(
        name.replace("_", "-")
        for name, path in sorted(modules.items())
        if DEFINES_LAB.search(path.read_text(encoding="utf-8"))
    )


def module_name(topic: str) -> str:
    """The module that holds a topic's checks."""
    return f"{__name__}.{topic.replace('-', '_')}"


def load_lab(topic: str) -> Lab:
    """The checks of a topic; `InputError` with a suggestion where there is none."""
    name = module_name(topic)
    try:
        module = importlib.import_module(name) if TOPIC.fullmatch(topic) else None
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        module = None
    found = getattr(module, "LAB", None)
    if not isinstance(found, Lab):
        known = topics()
        expected = f"one of {', '.join(known)}" if known else None
        raise InputError("no lab of this name", got=repr(topic), expected=expected, help=did_you_mean(topic, known))
    return found


def labs() -> dict[str, Lab]:
    """All labs that have checks, by topic."""
    return {topic: load_lab(topic) for topic in topics()}


def lab(topic: str, names: Mapping[str, Any] | None = None) -> LiveChecks:
    """The checks of a lab, bound to `names` (the caller's own global names if None, which is the notebook)."""
    from mlsys_lab.checks.live import LiveChecks  # decides, so a sandbox does not have it

    return LiveChecks(load_lab(topic), sys._getframe(1).f_globals if names is None else names)
