"""Calls of a stack's functions that predict: a mistake in one of them ends in one line that names it."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from mlsys_lab.capstone.stack import Stack
from mlsys_lab.errors import InputError


class Functions:
    """A stack's functions; one that is missing, fails or returns no number raises InputError."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack

    def call(self, field: str, name: str, *args: Any, **options: Any) -> Any:
        """Result of a layer's function."""
        try:
            function: Callable[..., Any] = getattr(getattr(self.stack, field), name)
        except AttributeError:
            got, help_ = self.stack.sources[field], "predict with the lab's layer, swap when you run"
            raise InputError(f"the {field} layer has no {name}", got=got, help=help_) from None
        try:
            return function(*args, **options)
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"the {field} layer's {name} failed", got=why) from error

    def number(self, field: str, name: str, *args: Any, of: str = "", **options: Any) -> Any:
        """Number that a layer's function returns, or its attribute `of`."""
        result = self.call(field, name, *args, **options)
        return self._check(f"the {field} layer's {name}", getattr(result, of, None) if of else result, of)

    def total(self, field: str, name: str, *args: Any) -> Any:
        """Sum of the numbers that a layer's function returns."""
        result = self.call(field, name, *args)
        numbers = result if isinstance(result, list | tuple) else [None]
        return sum(self._check(f"the {field} layer's {name}", number) for number in numbers)

    @staticmethod
    def _check(what: str, value: Any, of: str = "") -> Any:
        if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
            raise InputError(f"{what} returned no number", got=f"{of}={value!r}" if of else repr(value))
        return value
