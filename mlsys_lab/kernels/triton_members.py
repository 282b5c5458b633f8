"""The attributes of Triton's language, which its interpreter replaces by its own and does not always put back."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

Members = tuple[tuple[Any, dict[str, Any]], ...]
"""Modules and classes of `triton.language`, each with its attributes."""


def read_members() -> Members:
    """Read the attributes that Triton's modules and classes have now; `triton.language` has to be imported before."""
    tl = sys.modules["triton.language"]
    classes = (one for one in vars(tl.core).values() if isinstance(one, type))
    places = dict.fromkeys([tl, tl.core, tl.math, tl.standard, tl.random, *classes])
    return tuple((place, dict(vars(place))) for place in places)


@cache
def original_members() -> Members:
    """The attributes as they were at the first call, which `load_triton` makes: before any kernel was interpreted."""
    return read_members()


def restore_members(members: Members) -> None:
    """Set Triton's attributes to what `read_members` read, and delete those that a class has been given since.

    What a module has been given stays: there the interpreter puts names that its own text of functions uses.
    """
    for place, values in members:
        if isinstance(place, type):
            for name in [name for name in vars(place) if name not in values]:
                delattr(place, name)
        for name, value in values.items():
            if vars(place).get(name) is not value:
                setattr(place, name, value)
