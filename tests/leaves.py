"""Every number that a table of the package holds, so that a test can make each one wrong in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Numbers below a record, mapping or tuple, each with where it stands; flags, words and None are left out."""
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield path, value
    elif isinstance(value, tuple):
        for at, item in enumerate(value):
            yield from numbers(item, f"{path}.{at}")
    elif hasattr(value, "items"):
        for name, item in value.items():
            yield from numbers(item, f"{path}.{name}")
    elif hasattr(value, "__dataclass_fields__"):
        for field in fields(value):
            yield from numbers(getattr(value, field.name), f"{path}.{field.name}")
