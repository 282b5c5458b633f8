"""What the calls of lab 06 share: numbers and columns out of whatever a learner's function gives back."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_lab.errors import InputError


def number(name: str, got: Any) -> np.ndarray:
    """One real number as a float64 array of no axes."""
    if isinstance(got, np.ndarray) and got.shape == () and got.dtype.kind in "fiu":
        got = got.item()
    if isinstance(got, bool | np.bool_) or not isinstance(got, int | float | np.integer | np.floating):
        raise InputError(f"{name} is not a number", got=type(got).__name__, expected="float")
    return np.array(float(got))


def numbers(function: str, got: Any, *names: str) -> dict[str, np.ndarray]:
    """A tuple, list or array of as many numbers as there are names."""
    return {name: number(name, one) for name, one in zip(names, _parts(function, got, names), strict=True)}


def columns(function: str, got: Any, *names: str) -> dict[str, np.ndarray]:
    """A tuple, list or array of as many columns of real numbers as there are names, all of one length."""
    found = {name: column(name, one) for name, one in zip(names, _parts(function, got, names), strict=True)}
    if len({one.shape for one in found.values()}) > 1:
        shapes = ", ".join(f"{name} {one.shape}" for name, one in found.items())
        raise InputError(f"the columns of {function} differ in length", got=shapes, expected="one length")
    return found


def column(name: str, got: Any) -> np.ndarray:
    """A one-dimensional array of real numbers as float64."""
    try:
        array = np.asarray(got)
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in "fiu" or array.ndim != 1:
        found = f"{array.dtype} of shape {array.shape}"
        raise InputError(f"{name} is not a column of numbers", got=found, expected="floats of shape (R,)")
    return array.astype(np.float64)


def _parts(function: str, got: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    several = isinstance(got, tuple | list) or (isinstance(got, np.ndarray) and got.ndim > 0)
    if several and len(got) == len(names):
        return tuple(got)
    size = f" of shape {got.shape}" if isinstance(got, np.ndarray) else f" of {len(got)}" if several else ""
    expected = f"({', '.join(names)})"
    raise InputError(f"{function} gives something else", got=f"{type(got).__name__}{size}", expected=expected)


def law(artifact: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The `Law` of the notebook with given constants."""
    return artifact.Law(**{name: float(arrays[name]) for name in ("E", "A", "B", "alpha", "beta")})
