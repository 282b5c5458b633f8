"""What every amount of work, bytes or devices must be, or one line says which is not."""

from __future__ import annotations

from mlsys_lab.errors import InputError


def positive(**amounts: float) -> None:
    """`InputError` that names the first amount which is zero, negative or not a number."""
    for name, amount in amounts.items():
        if not amount > 0:
            raise InputError(f"{name} must be positive", got=amount)


def at_least_one(**amounts: float) -> None:
    """`InputError` that names the first amount of which there is less than one, or which is not a number."""
    for name, amount in amounts.items():
        if not amount >= 1:
            raise InputError(f"{name} must be at least 1", got=amount)


def not_negative(**amounts: float) -> None:
    """`InputError` that names the first amount which is negative or not a number."""
    for name, amount in amounts.items():
        if not amount >= 0:
            raise InputError(f"{name} must not be negative", got=amount)
