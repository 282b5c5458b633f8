"""Arithmetic of compiled Numba, in Python: result types, overflow, division by zero, and the range of `math`.

Python raises where a GPU gives infinity or NaN (`math.exp(1000)`), and NumPy keeps a float32 where Numba widens it:
with an integer or a float64, a float32 gives a float64. In a simulated kernel a float32 is therefore a `Float32`, every
other float is NumPy's float64, and `math` and some builtins come from this module. The results are compared with those
of compiled Numba, operation by operation, by `python -m tests.kernels.numba_semantics`.

Integers are Python's: like Numba's they do not wrap at 8, 16 or 32 bits. Three things differ: integers do not wrap at
64 bits either until they are stored, an integer divided by the integer 0 stops the kernel with its line, and an integer
to a negative power is a fraction. Source: Numba Enhancement Proposal 1 (integer typing), and `numba.cuda`, whose `max`
and `min` of floats are libdevice's `fmax` and `fmin`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

import numpy as np

MIN_INTEGER = -(1 << 63)
"""NaN and infinity converted to an integer (x86-64 and PTX: the smallest 64-bit integer)."""


class SmallInteger(int):
    """An 8- or 16-bit integer: an operation with a float32 gives a float32."""

    __slots__ = ()


NARROW = (np.float32, np.float16, bool, SmallInteger)
"""Operand types with which a float32 gives a float32."""


class Float32(np.float32):
    """A float32 with Numba's result types."""

    __slots__ = ()

    def __neg__(self) -> Float32:
        return Float32(np.float32.__neg__(self))

    def __pos__(self) -> Float32:
        return self

    def __abs__(self) -> Float32:
        return Float32(np.float32.__abs__(self))


def _operator(name: str) -> Callable[[Float32, Any], Any]:
    narrow, wide = getattr(np.float32, name), getattr(np.float64, name)

    def operate(self: Float32, other: Any) -> Any:
        if isinstance(other, NARROW):
            return Float32(narrow(self, other))
        return wide(np.float64(self), other)

    return operate


def _power(self: Float32, exponent: Any) -> Any:
    if isinstance(exponent, (int, *NARROW)):
        return Float32(np.float32.__pow__(self, np.float32(exponent)))
    return np.float64(self) ** exponent


for _sign in ("add", "sub", "mul", "truediv", "floordiv", "mod"):
    for _side in (f"__{_sign}__", f"__r{_sign}__"):
        setattr(Float32, _side, _operator(_side))
Float32.__pow__, Float32.__rpow__ = _power, _operator("__rpow__")  # type: ignore[method-assign,assignment]


def as_numba(value: Any) -> Any:
    """A number, or a tuple of numbers, as a simulated kernel holds it; anything else as it is."""
    if isinstance(value, tuple):
        return tuple(map(as_numba, value))
    if isinstance(value, np.float32):
        return Float32(value)
    if isinstance(value, np.integer):
        return SmallInteger(value) if value.itemsize <= 2 else int(value)
    if isinstance(value, np.bool_):
        return bool(value)
    return np.float64(value) if type(value) is float else value


def hold_numbers(code: CodeType) -> CodeType:
    """The code with its constants as a simulated kernel holds numbers."""
    constants = (hold_numbers(one) if isinstance(one, CodeType) else as_numba(one) for one in code.co_consts)
    return code.replace(co_consts=tuple(constants))


class Convert:
    """A number type in a simulated kernel: converts a number, or names the type of an array's elements."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype

    def __call__(self, value: Any = 0) -> Any:
        """The number in this type: an integer keeps its low bits, a float too large becomes infinity."""
        if self.dtype.kind == "f":
            return as_numba(self.dtype.type(value))
        if self.dtype.kind == "b":
            return bool(value)
        return as_numba(np.asarray(to_int(value) & 0xFFFFFFFFFFFFFFFF, np.uint64).astype(self.dtype)[()])


class Numbers:
    """A library's module in a simulated kernel: its number types convert as Numba's do, all else is the module's."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return stand_in(getattr(self._module, name))


def stand_in(value: Any) -> Any:
    """What a simulated kernel uses in place of a name's value from outside: `math`, number types, numbers."""
    if value is math:
        return Math
    if getattr(value, "__module__", None) == math.__name__:  # from math import exp
        return getattr(Math, value.__name__)
    if isinstance(value, ModuleType) and value.__name__ in ("numpy", "numba", "numba.types", "numba.core.types"):
        return Numbers(value)
    return Convert(dtype) if (dtype := _number_type(value)) is not None else as_numba(value)


def _number_type(value: Any) -> np.dtype[Any] | None:
    """The dtype of `np.float32`, `numba.float32` and the like; None for what is no type of numbers."""
    if isinstance(value, type) and issubclass(value, np.number | np.bool_):
        return np.dtype(value)
    if type(value).__module__.startswith("numba.") and type(value).__name__ in ("Float", "Integer", "Boolean"):
        from numba.np.numpy_support import as_dtype

        found: np.dtype[Any] = as_dtype(value)
        return found
    return None


def to_int(value: Any) -> int:
    """The number without its fraction; the least 64-bit integer for NaN and infinity."""
    return int(value) if not isinstance(value, float | np.floating) or math.isfinite(value) else MIN_INTEGER


def to_float(value: Any) -> Any:
    """A float32 as it is, any other number as a float64."""
    return value if isinstance(value, Float32) else np.float64(value)


def largest(*values: Any) -> Any:
    """The largest number; of floats as C's fmax, which passes over NaN."""
    return _choose(np.fmax, max, values)


def smallest(*values: Any) -> Any:
    """The smallest number; of floats as C's fmin, which passes over NaN."""
    return _choose(np.fmin, min, values)


def _choose(of_floats: np.ufunc, of_integers: Callable[..., Any], values: tuple[Any, ...]) -> Any:
    if len(values) == 1 and isinstance(values[0], tuple):
        (values,) = values
    if not any(isinstance(value, float | np.floating) for value in values):
        return of_integers(values)
    kind = Float32 if all(isinstance(value, (Float32, *NARROW)) for value in values) else np.float64
    found = values[0]
    for value in values[1:]:
        found = of_floats(found, value)
    return kind(found)


class Math:
    """Stand-in for the module `math`: gives infinity or NaN where Python raises, and a float32 of a float32."""

    e, pi, inf, nan, tau = (np.float64(value) for value in (math.e, math.pi, math.inf, math.nan, math.tau))
    isnan, isinf, isfinite = (staticmethod(getattr(math, name)) for name in ("isnan", "isinf", "isfinite"))


def _function(compute: Callable[..., Any]) -> staticmethod[..., Any]:
    """A function of `math` from one that computes on NumPy's scalars."""

    def call(*values: Any) -> Any:
        is_narrow = any(isinstance(value, np.float32) for value in values)
        is_narrow = is_narrow and all(isinstance(value, NARROW) for value in values)
        kind, narrow = (Float32, np.float32) if is_narrow else (np.float64, np.float64)
        return kind(compute(*map(narrow, values)))

    return staticmethod(call)


def _forgiving(name: str, pole: float) -> Callable[[Any], float]:
    """A function of `math` that NumPy lacks: `pole` where Python raises."""
    function = getattr(math, name)

    def compute(value: Any) -> float:
        try:
            return float(function(value))
        except (ValueError, OverflowError):
            return pole

    return compute


def _rounding(compute: np.ufunc) -> staticmethod[..., Any]:
    return staticmethod(lambda value: to_int(compute(np.float64(value))))


for _name in ("exp", "expm1", "log", "log10", "log1p", "log2", "sqrt", "fabs", "sin", "cos", "tan", "sinh", "cosh"):
    setattr(Math, _name, _function(getattr(np, _name)))
for _name in ("tanh", "hypot", "copysign", "fmod"):
    setattr(Math, _name, _function(getattr(np, _name)))
for _name in ("asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh"):
    setattr(Math, _name, _function(getattr(np, _name.replace("a", "arc", 1))))
for _name in ("floor", "ceil", "trunc"):
    setattr(Math, _name, _rounding(getattr(np, _name)))
for _name, _pole in (("erf", math.nan), ("erfc", math.nan), ("lgamma", math.inf), ("gamma", math.inf)):
    setattr(Math, _name, _function(_forgiving(_name, _pole)))
Math.pow = _function(np.power)  # type: ignore[attr-defined]

BUILTINS: dict[str, Any] = {"max": largest, "min": smallest, "int": to_int, "float": to_float}
"""Builtins that differ, by name."""
