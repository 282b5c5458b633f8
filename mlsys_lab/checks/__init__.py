"""What each lab checks, and how. In a notebook: `check = lab("autograd")`, then `check("value_add")`.

    learner/     runs beside the learner's code: limits, the calls of each lab, arrays out of what they give back
    deciding/    inputs, oracles and comparison; a package named after each topic defines `LAB`, and `labs()` finds it
    sides.py     which files of the two a lab has to do with

The other modules here bring both sides together on the learner's own machine: in a live notebook (`live`), on a saved
one in a fresh process (`fresh`), with what came out of it as text or as a card (`render`).
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import TYPE_CHECKING, Any

from mlsys_lab.checks.learner.spec import Case, Check, Lab, Mismatch
from mlsys_lab.checks.sides import DECIDING_PACKAGE, find_modules
from mlsys_lab.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from mlsys_lab.checks.live import LiveChecks

__all__ = ["Case", "Check", "Lab", "Mismatch", "lab", "labs", "load_lab", "topics"]

TOPIC = re.compile(r"[a-z][a-z0-9-]*")


def topics() -> tuple[str, ...]:
    """Topics that have checks, in the order of the alphabet; none of their modules is imported."""
    return tuple(name.replace("_", "-") for name in find_modules())


def module_name(topic: str) -> str:
    """The module that defines a topic's `LAB`."""
    return f"{DECIDING_PACKAGE}.{topic.replace('-', '_')}"


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


def lab(topic: str, names: dict[str, Any] | None = None) -> LiveChecks:
    """The checks of a lab, bound to `names` (the caller's own global names if None, which is the notebook)."""
    from mlsys_lab.checks.live import LiveChecks  # a notebook's side, which whoever reads the registry does not need

    return LiveChecks(load_lab(topic), sys._getframe(1).f_globals if names is None else names)
