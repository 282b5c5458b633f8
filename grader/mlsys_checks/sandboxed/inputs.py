"""Verify that a learner's code leaves its inputs unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from mlsys_lab.errors import InputError

SHOWN = 300
"""Characters of an input that a message shows."""


@contextmanager
def unchanged(**given: Any) -> Iterator[None]:
    """Raise `InputError` if an input has changed when the block ends."""
    before = deepcopy(given)
    yield
    for name, value in given.items():
        if _differ(value, before[name]):
            got, expected = (str(shown)[:SHOWN] for shown in (value, before[name]))
            raise InputError(f"your code changes its input `{name}`", got=got, expected=expected)


def _differ(one: Any, other: Any) -> bool:
    """Whether two values, or any elements of two arrays of one shape, differ."""
    unequal = one != other
    return bool(unequal.any() if hasattr(unequal, "any") else unequal)
