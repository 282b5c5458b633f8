"""Save and restore the attributes of `triton.language`, which Triton's interpreter patches and may leave patched."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

Members = tuple[tuple[Any, dict[str, Any]], ...]
"""Modules and classes of `triton.language`, each with its attributes."""


def read_members() -> Members:
    """Read the current attributes of Triton's modules and classes; `triton.language` must be imported already."""
    tl = sys.modules["triton.language"]
    classes = (one for one in vars(tl.core).values() if isinstance(one, type))
    owners = dict.fromkeys([tl, tl.core, tl.math, tl.standard, tl.random, *classes])
    return tuple((owner, dict(vars(owner))) for owner in owners)


@cache
def original_members() -> Members:
    """The attributes before any kernel was interpreted: read at the first call, which `load_triton` makes."""
    return read_members()


def restore_members(members: Members) -> None:
    """Set Triton's attributes to what `read_members` returned, and delete those added to a class since.

    Attributes added to a module stay: the interpreter's generated functions use them.
    """
    for owner, values in members:
        if isinstance(owner, type):
            for name in [name for name in vars(owner) if name not in values]:
                delattr(owner, name)
        for name, value in values.items():
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)
