"""Checks of amounts of work, bytes or devices: each raises one line that names the amount which is out of range."""

from __future__ import annotations

from mlsys_lab.errors import InputError


def require_positive(**amounts: float) -> None:
    """Raise InputError naming the first amount that is zero, negative or not a number."""
    for name, amount in amounts.items():
        if not amount > 0:
            raise InputError(f"{name} must be positive", got=amount)


def require_at_least_one(**amounts: float) -> None:
    """Raise InputError naming the first amount that is less than one or not a number."""
    for name, amount in amounts.items():
        if not amount >= 1:
            raise InputError(f"{name} must be at least 1", got=amount)


def require_not_negative(**amounts: float) -> None:
    """Raise InputError naming the first amount that is negative or not a number."""
    for name, amount in amounts.items():
        if not amount >= 0:
            raise InputError(f"{name} must not be negative", got=amount)
