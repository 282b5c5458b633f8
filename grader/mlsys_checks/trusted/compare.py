"""When two arrays count as equal: one tolerance per dtype, and messages that show where they differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays, Mismatch
from mlsys_lab.errors import InputError

TOLERANCES = MappingProxyType(
    {
        # One visit to float32 costs 6e-8 and is seen; sums of 1e5 terms in another order (2e-11) and central
        # differences at a step near 1e-5 (1e-10) are not.
        "float64": 1e-9,
        # About eps to the power 2/3: sums of 200 terms in the worst order or 4e4 on average pass; one rounding to
        # tf32, bfloat16 or float16 (5e-4 and more) is seen.
        "float32": 2e-5,
        # eps is 1e-3: a handful of roundings of intermediate results pass; a bfloat16 detour (8e-3) mostly does not.
        "float16": 5e-3,
        # eps is 8e-3. Such results travel as float32, so a check asks for this one through `scale`.
        "bfloat16": 3e-2,
    }
)
SHOWN = 6
"""Entries of an array that a message shows."""
ROUNDING = 3e-7
"""Largest relative difference of float64 values that a message calls rounding: five roundings to float32."""
_tolerance_used: ContextVar[list[float] | None] = ContextVar("tolerance_used", default=None)


@contextmanager
def record_tolerance_used() -> Iterator[list[float]]:
    """Record, for each array of finite floats compared by `close`, the largest fraction of its tolerance used.

    0.1 means that no entry used more than a tenth of its tolerance; above 1 the comparison failed.
    """
    fractions: list[float] = []
    token = _tolerance_used.set(fractions)
    try:
        yield fractions
    finally:
        _tolerance_used.reset(token)


def tolerance(dtype: np.dtype | type | str) -> float:
    """Relative tolerance of a dtype; 0 for booleans and integers, which must be equal.

    >>> tolerance("int64"), tolerance("float32")
    (0.0, 2e-05)
    """
    name = "bfloat16" if dtype == "bfloat16" else np.dtype(dtype).name
    if name in TOLERANCES:
        return TOLERANCES[name]
    if np.dtype(dtype).kind in "biu":
        return 0.0
    raise InputError("no tolerance for this dtype", got=name, expected="a bool, integer or float dtype")


def close(
    got: Arrays, expected: Arrays, *, scale: float = 1.0, min_size: Mapping[str, float] = MappingProxyType({})
) -> Mismatch | None:
    """Compare arrays by name, shape, dtype and, within tolerance, value: None, or the first mismatch.

    An entry may be off by `scale · tolerance(dtype) · (|expected| + size)`, where `size` is the root mean square of the
    finite expected entries (1 if all are zero), because entries near zero come from cancellation of entries of that
    size. If a whole array comes from cancellation of larger values, `min_size` gives their size by array name. NaN
    never passes; an infinity must equal the expected one.
    """
    for name, want in expected.items():
        if name not in got:
            return Mismatch(f"`{name}` is missing", ", ".join(got) or "nothing", name)
        if (mismatch := _compare_array(name, got[name], want, scale, min_size.get(name, 0.0))) is not None:
            return mismatch
    if extra := [name for name in got if name not in expected]:
        return Mismatch("more came back than was asked for", ", ".join(extra), ", ".join(expected))
    return None


def _compare_array(name: str, got: np.ndarray, want: np.ndarray, scale: float, min_size: float) -> Mismatch | None:
    if got.shape != want.shape:
        return Mismatch(f"`{name}` has the wrong shape", str(got.shape), str(want.shape), is_form=True)
    if got.dtype != want.dtype:
        return Mismatch(f"`{name}` has the wrong dtype", str(got.dtype), str(want.dtype), is_form=True)
    if want.size == 0:
        return None
    if got.dtype.kind == "f" and _is_close(got, want, scale, min_size):
        return None
    if got.dtype.kind == "f" and (nans := int(np.isnan(got).sum())):
        return Mismatch(f"`{name}` has {nans} NaN in {_entries(got.size)}", _format(got), _format(want))
    wrong = got != want if tolerance(want.dtype) == 0 else _too_far(got, want, scale, min_size)
    if not wrong.any():
        return None
    return _describe_difference(name, got, want, wrong)


def _is_close(got: np.ndarray, want: np.ndarray, scale: float, min_size: float) -> bool:
    """Whether all entries are finite and close: a fast path for right answers, with a third of `_too_far`'s passes."""
    flat = np.asarray(want, np.float64).ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        size = math.sqrt(np.dot(flat, flat) / flat.size)
        if not math.isfinite(size) or (size == 0.0 and flat.any()):
            return False  # squares overflow or vanish: `_too_far` scales them
        error, allowed = np.abs(got.ravel() - flat), np.abs(flat)
    allowed += max(size, min_size) or 1.0
    allowed *= scale * tolerance(want.dtype)
    _record_tolerance_used(error, allowed)
    return bool((error <= allowed).all())


def _record_tolerance_used(error: np.ndarray, allowed: np.ndarray) -> None:
    if (fractions := _tolerance_used.get()) is not None:
        fractions.append(float((error / allowed).max()))


def _too_far(got: np.ndarray, want: np.ndarray, scale: float, min_size: float) -> np.ndarray:
    wide_got, wide = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(wide)
    largest = float(np.abs(wide[finite]).max(initial=0.0))
    size = largest * float(np.sqrt(np.mean(np.square(wide[finite] / largest)))) if largest else 0.0
    factor = scale * tolerance(want.dtype)  # applied to each term: the sum of two largest floats is infinite
    allowed = factor * np.abs(np.where(finite, wide, 0.0)) + factor * (max(size, min_size) or 1.0)
    both = finite & np.isfinite(wide_got)
    error = np.abs(np.subtract(wide_got, wide, where=both, out=np.zeros(wide.shape)))
    # `not <=` rather than `>`: an expected NaN, a bug of the oracle, never passes either.
    return np.where(both, ~(error <= allowed), wide_got != wide)


def _describe_difference(name: str, got: np.ndarray, want: np.ndarray, wrong: np.ndarray) -> Mismatch:
    with np.errstate(invalid="ignore", over="ignore"):
        is_rounding = want.dtype == np.float64 and bool((np.abs(got - want) <= ROUNDING * np.abs(want)).all())
    if is_rounding:
        what = f"`{name}` differs by rounding alone: was a part of it computed in single precision?"
        return Mismatch(what, *_format_distinct(got, want))
    if want.ndim == 0:
        return Mismatch(f"`{name}` has the wrong value", *_format_distinct(got, want))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    error = np.where(wrong, np.nan_to_num(error, nan=np.inf), -1.0)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(error)), want.shape))
    at = f"[{', '.join(map(str, index))}]"
    what = f"`{name}` is wrong in {int(wrong.sum())} of {_entries(want.size)}, worst at {at}"
    if want.size <= SHOWN:
        return Mismatch(what, *_format_distinct(got, want))
    return Mismatch(what, *(f"{shown} at {at}" for shown in _format_distinct(got[index], want[index])))


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _format_distinct(got: np.ndarray, want: np.ndarray) -> list[str]:
    """Format both values with as many digits as it takes to see the difference."""
    shown: list[str] = []
    for precision in (6, 9, 12, 17):
        shown = [_format(values, precision) for values in (got, want)]
        if shown[0] != shown[1]:
            break
    return shown


def _format(values: np.ndarray, precision: int = 6) -> str:
    return np.array2string(
        np.asarray(values), precision=precision, separator=", ", threshold=SHOWN, edgeitems=SHOWN // 2
    )
