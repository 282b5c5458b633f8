"""What the calls of lab 02 share: the learner's numbers and words as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlsys_lab.errors import InputError


def whole(name: str, got: Any) -> np.ndarray:
    """A whole number as an int64 array of no axes."""
    if isinstance(got, bool) or not isinstance(got, int | np.integer):
        given = f"{type(got).__name__} {got!r}"[:80]
        told = "an int: of ints // gives one, of floats math.ceil or int do" if isinstance(got, float) else "an int"
        raise InputError(f"{name} gives no whole number", got=given, expected=told)
    if abs(int(got)) >= 2**63:
        raise InputError(f"{name} is out of range", got=got, expected="less than 2**63")
    return np.array(int(got), dtype=np.int64)


def number(name: str, got: Any) -> np.ndarray:
    """A real number as a float64 array of no axes."""
    if isinstance(got, bool) or not isinstance(got, int | float | np.integer | np.floating):
        raise InputError(f"{name} gives no plain number", got=f"{type(got).__name__} {got!r}"[:80], expected="a float")
    return np.array(float(got))


def entries(name: str, got: Any, parts: Sequence[str]) -> tuple[Any, ...]:
    """The entries of a tuple of so many parts."""
    if not isinstance(got, tuple) or len(got) != len(parts):
        raise InputError(f"{name} gives something else", got=repr(got)[:80], expected=f"a tuple ({', '.join(parts)})")
    return got


def word(name: str, got: Any, known: Sequence[str]) -> np.ndarray:
    """One of the words that there are, as the bytes of its letters."""
    if got not in known:
        raise InputError(f"{name} names something else", got=repr(got)[:80], expected=" or ".join(map(repr, known)))
    return text(got)


def code(value: float) -> str:
    """The shortest text that makes this very number again."""
    texts = (f"{value:.{digits}g}" for digits in range(1, 18))
    exact = next(text for text in texts if float(text) == value)
    return min(exact, f"{value:.0f}", key=len) if value == int(value) else exact


def text(said: str) -> np.ndarray:
    """A short text as the bytes in which it crosses."""
    return np.frombuffer(said.encode(), np.uint8).copy()
