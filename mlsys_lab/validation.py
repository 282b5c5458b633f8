"""Checks of arguments. Each raises an InputError of one line that names the argument which is out of range."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, TypeGuard

from mlsys_lab.errors import InputError, did_you_mean


def require_positive(**amounts: float) -> None:
    """Raise InputError naming the first argument that is zero, negative or not a number."""
    _require(amounts, lambda amount: amount > 0, "must be positive")


def require_at_least_one(**amounts: float) -> None:
    """Raise InputError naming the first argument that is less than one or not a number."""
    _require(amounts, lambda amount: amount >= 1, "must be at least 1")


def require_non_negative(**amounts: float) -> None:
    """Raise InputError naming the first argument that is negative or not a number."""
    _require(amounts, lambda amount: amount >= 0, "must not be negative")


def _require(amounts: dict[str, Any], holds: Callable[[Any], bool], rule: str) -> None:
    for name, amount in amounts.items():
        if not (isinstance(amount, Real) and holds(amount)):
            raise InputError(f"{name} {rule}", got=amount)


def is_integer(value: object, *, at_least: int) -> TypeGuard[int]:
    """Whether a value is an int of at least `at_least`; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def require_integer(name: str, value: object, *, at_least: int = 1) -> None:
    """Raise InputError unless the value is an int of at least `at_least`."""
    if not is_integer(value, at_least=at_least):
        expected = f"a whole number, at least {at_least}"
        raise InputError(f"{name} out of range", got=repr(value), expected=expected)


def require_positive_number(name: str, value: object) -> None:
    """Raise InputError unless the value is a positive, finite int or float."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InputError(f"{name} out of range", got=repr(value), expected="a positive number")


def require_one_of(what: str, value: str, known: Sequence[str]) -> None:
    """Raise InputError, with the nearest known name, unless the value is one of the known names."""
    if value not in known:
        raise InputError(
            f"unknown {what}",
            got=repr(value),
            expected=f"one of {', '.join(known)}",
            help=did_you_mean(str(value), known),
        )


def require_power_of_two(name: str, value: int, *, at_least: int = 1) -> None:
    """Raise InputError unless the value is a power of two of at least `at_least`."""
    if value < at_least or value & (value - 1):
        raise InputError(name, got=value, expected=f"a power of two from {at_least}")


def require_grouped_heads(heads: int, kv_heads: int) -> None:
    """Raise InputError unless the query heads are a multiple of the key/value heads."""
    if not kv_heads or heads % kv_heads:
        raise InputError("query heads must be a multiple of key/value heads", got=f"{heads} and {kv_heads}")
