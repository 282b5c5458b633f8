"""What a simulated kernel computes, held against compiled Numba: `python -m tests.kernels.numba_semantics` prints it.

The oracle is Numba compiled for this processor with `error_model="numpy"`, which is the model of its CUDA target.
"""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from types import FunctionType
from typing import Any

import numba
import numpy as np

from mlsys_lab.kernels.runtime import load_numba
from mlsys_lab.kernels.trace.numba_functions import simulate
from mlsys_lab.kernels.trace.numba_numbers import Float32, as_numba

REFUSED = "stops with its line"
"""What a simulated kernel does instead of an integer division by zero."""
VALUES: dict[Any, tuple[float, ...]] = {
    np.bool_: (False, True),
    np.uint8: (0, 1, 255),
    np.int32: (0, 1, -7, 2**31 - 1),
    np.int64: (0, 3, -5, 2**40),
    np.float32: (0.0, 1.5, -2.0, 100.0, 3e38, math.inf, math.nan),
    np.float64: (0.0, 0.1, -2.5, 1000.0, 1e300, -math.inf, math.nan),
}
BINARY = ("a + b", "a - b", "a * b", "a / b", "a // b", "a % b", "a < b", "a == b", "0.5 * (a if a > b else b)")
BINARY += ("math.atan2(a, b)", "math.hypot(a, b)")
OF_INTEGERS = ("a & b", "a | b", "a ^ b", "~a", "a << 3", "a >> 2", "min(a, b)", "max(a, b)")
UNARY = (
    "-a",
    "+a",
    "abs(a)",
    "not a",
    "2 * a",
    "a * 0.5",
    "a / 3",
    "1 / (1 + math.exp(a))",
    "math.exp(a) * 0",
    "a ** 2",
)
UNARY += ("float(a)", "int32(a)", "int64(a)", "float32(a)", "float64(a)", "float32(a) + 1", "math.isnan(a)")
FUNCTIONS = """acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp expm1 fabs floor lgamma log log10 log1p log2
    sin sinh sqrt tan tanh trunc"""
UNARY += tuple(f"math.{name}(a)" for name in FUNCTIONS.split())
WORD = 2**64


def _function(expression: str) -> FunctionType:
    names = {"math": math, **{name: getattr(numba.types, name) for name in ("float32", "float64", "int32", "int64")}}
    exec(f"def f(a, b):\n    return {expression}", names)
    made = names["f"]
    assert isinstance(made, FunctionType)
    return made


def _simulated(function: FunctionType, values: tuple[Any, ...]) -> Any:
    try:
        return simulate(function, load_numba())(*map(as_numba, values))
    except ZeroDivisionError:
        return REFUSED


def _kind(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, int | np.integer):
        return "int"
    return "float32" if isinstance(value, Float32) else "float64"


def _agrees(got: Any, compiled: Any, of: Any) -> bool:
    """Whether both are of one type and equal: integers in 64 bits, functions of `math` to some units in the last place.

    What an integer that does not fit becomes of a float (C leaves it open) is not compared.
    """
    kind = {"float32": "float32", "float64": "float64", "bool": "bool"}.get(str(of), "int")
    if _kind(got) != kind:
        return False
    if kind == "int":
        return bool((int(got) - int(compiled)) % WORD == 0)
    tolerance = {"float32": 1e-6, "float64": 1e-14}.get(kind, 0.0)
    return bool(np.isclose(np.float64(got), np.float64(compiled), rtol=tolerance, atol=tolerance, equal_nan=True))


def _fits(expression: str, value: Any) -> bool:
    """Whether an expression that makes an integer of `value` has a result that C defines."""
    to_integer = expression.startswith(("int", "math.floor", "math.ceil", "math.trunc"))
    return not (to_integer and isinstance(value, np.floating)) or abs(value) < 2**31


def compare(expression: str, kinds: tuple[Any, ...]) -> tuple[int, int, list[str]]:
    """Try an expression on all values of its operands' types: cases, those refused, and what differs, in words."""
    function = _function(expression)
    compiled = numba.njit(error_model="numpy")(function)
    cases, refused, wrong = 0, 0, list[str]()
    for values in itertools.product(*(map(kind, VALUES[kind]) for kind in kinds)):
        if not _fits(expression, values[0]):
            continue
        given = values if len(values) == 2 else (*values, 0)
        expected, got = compiled(*given), _simulated(function, given)
        cases, refused = cases + 1, refused + (got is REFUSED)
        returns = compiled.nopython_signatures[-1].return_type
        if got is not REFUSED and not _agrees(got, expected, returns):
            wrong.append(f"{expression} of {values}: {got!r} ({_kind(got)}), compiled {expected!r} ({returns})")
    return cases, refused, wrong


def operations() -> list[tuple[str, tuple[Any, ...]]]:
    """All expressions, each with the types of its operands."""
    pairs = list(itertools.product(VALUES, repeat=2))
    integers = [np.int32, np.int64]
    found = [(one, pair) for one in BINARY for pair in pairs if _is_typed(one, pair)]
    found += [(one, pair) for one in OF_INTEGERS for pair in itertools.product(integers, repeat=2)]
    return found + [(one, (kind,)) for one in UNARY for kind in VALUES if _is_typed(one, (kind,))]


def _is_typed(expression: str, kinds: tuple[Any, ...]) -> bool:
    """Whether Numba compiles the expression for these types: of bool it lacks much. -a of an unsigned a would wrap."""
    if expression == "-a":
        return kinds[0] not in (np.bool_, np.uint8)
    return np.bool_ not in kinds or expression in ("a + b", "a * b", "a == b", "not a", "2 * a", "a * 0.5")


def main() -> int:
    """Print a line for each operation; returns 1 if a result differs."""
    warnings.simplefilter("ignore")
    wrong: list[str] = []
    table: dict[str, list[int]] = {}
    for expression, kinds in operations():
        cases, refused, differing = compare(expression, kinds)
        row = table.setdefault(expression, [0, 0, 0, 0])
        for column, count in enumerate((1, cases, refused, len(differing))):
            row[column] += count
        wrong += differing
    print(f"{'operation':28}{'types':>8}{'cases':>8}{'refused':>9}{'different':>11}")
    for expression, (types, cases, refused, different) in table.items():
        print(f"{expression:28}{types:8}{cases:8}{refused:9}{different:11}")
    print("\n".join([f"{sum(row[1] for row in table.values())} cases, {len(wrong)} different", *wrong]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
