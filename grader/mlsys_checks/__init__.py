"""What each lab checks. In a notebook: `check = lab("autograd")`, then `check("value_add")`.

    sandboxed/   runs in the submission's process: limits, the calls of each lab, conversion of results to arrays
    trusted/     inputs, oracles and comparison; a package per topic defines `LAB`
    sides.py     which files of both belong to a lab

The other modules join the two sides on the learner's machine: in a live notebook (`live`), or on a saved one in a fresh
process (`fresh`), for `mlsys-lab check` (`command`); `render` shows a report as text or as a card.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import TYPE_CHECKING, Any

from mlsys_checks.sandboxed.spec import Case, Check, Lab, Mismatch
from mlsys_checks.sides import find_modules
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.stack.labinfo import default_checks

if TYPE_CHECKING:
    from mlsys_checks.live import LiveChecks
    from mlsys_lab.stack.labinfo import LabInfo

__all__ = ["Case", "Check", "Lab", "Mismatch", "lab", "labs", "load_checks", "load_lab", "topics"]

TOPIC = re.compile(r"[a-z][a-z0-9-]*")


def topics() -> tuple[str, ...]:
    """Topics that have checks, in alphabetical order; imports none of them."""
    return tuple(name.replace("_", "-") for name in find_modules())


def load_lab(topic: str) -> Lab:
    """The checks of a topic; `InputError` with a suggestion for an unknown one."""
    name = default_checks(topic)
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


def load_checks(info: LabInfo) -> Lab:
    """The checks of a lab; `InputError` if their module is missing or defines none."""
    try:
        found = getattr(importlib.import_module(info.checks_module), "LAB", None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{info.checks_module}.".startswith(f"{error.name}."):
            raise
        found = None
    if not isinstance(found, Lab):
        raise InputError(f"lab {info.name} has no checks", expected=f"LAB in a module {info.checks_module}")
    return found


def labs() -> dict[str, Lab]:
    """All labs that have checks, by topic."""
    return {topic: load_lab(topic) for topic in topics()}


def lab(topic: str, names: dict[str, Any] | None = None) -> LiveChecks:
    """The checks of a lab bound to `names`, by default the caller's globals: the notebook."""
    from mlsys_checks.live import LiveChecks  # imports what only a notebook needs

    return LiveChecks(load_lab(topic), sys._getframe(1).f_globals if names is None else names)
