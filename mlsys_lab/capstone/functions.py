"""Calls of a stack's functions that predict: a mistake in one of them ends in one line that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlsys_lab.capstone.stack import Stack
from mlsys_lab.errors import InputError


def call(stack: Stack, field: str, name: str, *args: Any) -> Any:
    """Result of a layer's function; InputError if it is missing or fails."""
    try:
        function: Callable[..., Any] = getattr(getattr(stack, field), name)
    except AttributeError:
        got, help_ = stack.sources[field], "predict with the lab's layer, swap when you run"
        raise InputError(f"the {field} layer has no {name}", got=got, help=help_) from None
    try:
        return function(*args)
    except InputError:
        raise
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"the {field} layer's {name} failed", got=why) from error
