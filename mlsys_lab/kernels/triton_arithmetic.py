"""Make Triton's interpreter compute as compiled code does on an NVIDIA GPU (compute capability 9.0).

The interpreter (3.6 to 3.9) computes with NumPy, which differs for special values: NumPy's maximum of a NaN and a
number is NaN where `max.f32` returns the number; converting 1e10 to int32 gives the smallest int32 where
`cvt.rzi.s32.f32` gives the largest; float32 is truncated to bfloat16 where `cvt.rn.bf16.f32` rounds to nearest. It also
stores bfloat16 and float8 as their raw bits and would add those: such arithmetic raises an error. `python -m
tests.kernels.semantics` compares each operation with the instructions that the compiler emits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mlsys_lab.errors import InputError

Handle = Any  # Triton's TensorHandle: a NumPy array and the type of its elements


@dataclass(frozen=True)
class Format:
    """A floating-point format that values are rounded to."""

    dtype: torch.dtype
    significant_bits: int  # including the implicit one
    min_exponent: int  # of a normal number
    largest: float
    saturates: bool  # whether overflow rounds to the largest number rather than infinity


FORMATS = {
    "fp16": Format(torch.float16, 11, -14, 65504.0, saturates=False),
    "bf16": Format(torch.bfloat16, 8, -126, float(torch.finfo(torch.bfloat16).max), saturates=False),
    "fp8e5": Format(torch.float8_e5m2, 3, -14, 57344.0, saturates=True),
    "fp8e4nv": Format(torch.float8_e4m3fn, 4, -6, 448.0, saturates=True),
}
"""Formats by Triton's name of the type."""
FLUSHING = ("create_exp2", "create_sqrt", "create_rsqrt", "create_ceil", "create_floor")
"""Functions that flush subnormal float32 inputs and results to 0 (`.ftz`)."""


@contextmanager
def replace_members(place: Any, members: Mapping[str, Any]) -> Iterator[None]:
    """Set attributes of an object or a class in the body of a `with`."""
    own = {name: vars(place)[name] for name in members if name in vars(place)}
    for name, member in members.items():
        setattr(place, name, member)
    try:
        yield
    finally:
        for name in members:
            if name in own:
                setattr(place, name, own[name])
            else:
                delattr(place, name)


@contextmanager
def follow_compiler(interpreter: Any) -> Iterator[None]:
    """Make the interpreter compute as compiled kernels do, and raise for unsupported operations."""
    builder = interpreter.interpreter_builder
    with ExitStack() as stack:
        stack.enter_context(replace_members(builder, _refusals(builder)))
        for place, name in (
            (interpreter.ReduceOps, "min_max"),
            (interpreter.ScanOps, "cumsum"),
            (interpreter.ScanOps, "cumprod"),
        ):
            stack.enter_context(replace_members(place, {name: _refuse(getattr(place, name), operand=1)}))
        stack.enter_context(replace_members(interpreter.ReduceOps, {"sum": _sum}))
        stack.enter_context(replace_members(builder, _operations(builder, interpreter)))
        yield


def _refusals(builder: Any) -> dict[str, Callable[..., Any]]:
    guarded = ("binary_op", "unary_op", "create_fma", "create_clampf")
    members = {name: _refuse(getattr(builder, name)) for name in guarded}
    return members | {"create_atomic_rmw": _refuse(builder.create_atomic_rmw, operand=2)}


def _refuse(original: Callable[..., Any], *, operand: int = 0) -> Callable[..., Any]:
    """Wrap an operation so that it rejects an operand that the interpreter stores as raw bits."""

    def operate(*args: Any, **keywords: Any) -> Any:
        _check_holds_numbers(args[operand])
        return original(*args, **keywords)

    return operate


def _check_holds_numbers(operand: Any) -> None:
    scalar = getattr(operand, "dtype", None) and operand.dtype.scalar
    if scalar and scalar.name == "bf16":
        raise InputError("the interpreter cannot calculate with bfloat16", help="x.to(tl.float32) after the load")
    if scalar and scalar.is_fp8():
        what = f"Triton's compiler has no arithmetic for {scalar.name}"
        raise InputError(what, help="x.to(tl.float32) after the load")


def _sum(reduction: Any, block: Any) -> Any:
    """Sum along an axis in the elements' type, in which integers wrap around."""
    _check_holds_numbers(block)
    data = block.handle.data
    total = np.sum(data, axis=reduction.axis, keepdims=reduction.keep_dims, dtype=data.dtype)
    return reduction.to_tensor(total, block.dtype)


def _operations(builder: Any, interpreter: Any) -> dict[str, Callable[..., Any]]:
    """Operations that differ from NumPy's, by their names in the interpreter's builder."""
    handle, numpy_type = interpreter.TensorHandle, interpreter._get_np_dtype

    def binary(operation: Callable[..., np.ndarray]) -> Callable[[Handle, Handle], Handle]:
        return lambda left, right: builder.binary_op(left, right, operation)

    def flushing(original: Callable[[Handle], Handle]) -> Callable[[Handle], Handle]:
        def operate(operand: Handle) -> Handle:
            found = original(handle(_flush(operand.data), operand.dtype))
            return handle(_flush(found.data), found.dtype)

        return operate

    def convert(source: Handle, target: Any, rounding: Any = None) -> Handle:
        scalar, given = target.scalar, source.dtype.scalar
        if (given.is_fp8() and (scalar.is_fp8() or scalar.is_fp64())) or (scalar.is_fp8() and given.is_fp64()):
            what = f"Triton's compiler has no conversion from {given.name} to {scalar.name}"
            raise InputError(what, help="x.to(tl.float32) in between")
        values, from_float64 = _widen(source), source.data.dtype == np.float64
        if given.name == "fp8e5" and scalar.name == "bf16":  # whose largest exponent the compiler takes for any other
            odd = ~np.isfinite(values)
            largest = np.ldexp(1 + (source.data & 3) / np.float32(4), 16)
            values = np.where(odd, np.where(source.data & 0x80, -largest, largest), values)
        nearest = rounding is None or rounding == interpreter._ir.ROUNDING_MODE.RTNE
        if scalar.name in FORMATS:
            data = _narrow(values, FORMATS[scalar.name], nearest=nearest).view(numpy_type(scalar))
        elif values.dtype.kind == "f" and numpy_type(scalar).kind in "iu":
            data = _to_integers(values, numpy_type(scalar), from_float64=from_float64)
        else:
            data = values.astype(numpy_type(scalar))
        return handle(data, scalar)

    def cast(source: Handle, target: Any) -> Handle:
        found = convert(source, target)
        if (
            target.scalar.is_fp8() and (_widen(found) != source.data).any()
        ):  # of constants, as blocks are converted above
            what = f"Triton's compiler takes only numbers that {target.scalar.name} holds exactly as its constants"
            raise InputError(what, got=source.data.item())
        return found

    def clamp(x: Handle, low: Handle, high: Handle, propagate_nan: Any) -> Handle:
        _check_holds_numbers(x)
        drops = propagate_nan == type(propagate_nan).NONE
        at_least = _larger(np.fmax if drops else np.maximum)
        at_most = _smaller(np.fmin if drops else np.minimum)
        return handle(at_most(at_least(x.data, low.data), high.data), x.dtype.scalar)

    def fma(x: Handle, y: Handle, z: Handle) -> Handle:
        _check_holds_numbers(x)
        return handle(_fma(x.data, y.data, z.data), z.dtype.scalar)

    def dot(a: Handle, b: Handle, *rest: Any) -> Handle:
        if "bf16" in (a.dtype.scalar.name, b.dtype.scalar.name):
            _check_holds_numbers(a)
            _check_holds_numbers(b)
        half = numpy_type(interpreter.tl.float16)
        a, b = (
            handle(_widen(one).astype(half), interpreter.tl.float16) if one.dtype.scalar.is_fp8() else one
            for one in (a, b)
        )
        return original_dot(a, b, *rest)

    original_dot = builder.create_dot
    return {
        **{name: flushing(getattr(builder, name)) for name in FLUSHING},
        "cast_impl": cast,
        "create_fp_to_fp": convert,
        "get_bf16": lambda value: convert(builder.get_fp64(value), interpreter.tl.bfloat16),
        "create_maxnumf": binary(_larger(np.fmax)),
        "create_minnumf": binary(_smaller(np.fmin)),
        "create_maximumf": binary(_larger(np.maximum)),
        "create_minimumf": binary(_smaller(np.minimum)),
        "create_frem": binary(_remainder),
        "create_add": binary(lambda x, y: x ^ y if x.dtype == bool else x + y),
        "create_sub": binary(lambda x, y: x ^ y if x.dtype == bool else x - y),
        "get_all_ones_value": lambda kind: handle(~np.zeros(1, dtype=numpy_type(kind)), kind.scalar),
        "create_umulhi": binary(_high_product),
        "create_clampf": clamp,
        "create_fma": fma,
        "create_dot": dot,
    }


def _widen(source: Handle) -> np.ndarray:
    """The numbers of a handle, also of those that are held as bits."""
    if (form := FORMATS.get(source.dtype.scalar.name)) is None or source.data.dtype.kind in "fb":
        return np.asarray(source.data)  # comparisons keep the type of what they compare
    bits = torch.from_numpy(np.ascontiguousarray(source.data))
    return np.asarray(bits.view(form.dtype).to(torch.float32).numpy())


def _narrow(values: np.ndarray, form: Format, *, nearest: bool) -> np.ndarray:
    """Bits of numbers in a narrower format, rounded once: to the nearest, ties to even, or towards zero."""
    exact = values.astype(np.longdouble if values.dtype.kind in "iu" else np.float64)
    _, exponent = np.frexp(exact)
    unit = np.maximum(exponent, form.min_exponent + 1) - form.significant_bits
    rounded = np.ldexp((np.rint if nearest else np.trunc)(np.ldexp(exact, -unit)), unit)
    if form.saturates or not nearest:
        clipped = np.clip(rounded, -form.largest, form.largest)
        rounded = np.where(np.isinf(exact) & (not nearest), exact, clipped)
    as_float32 = np.ascontiguousarray(rounded, dtype=np.float32)
    bits = torch.from_numpy(as_float32).to(form.dtype).view({1: torch.uint8, 2: torch.uint16}[form.dtype.itemsize])
    return np.asarray(bits.numpy())


def _to_integers(values: np.ndarray, dtype: np.dtype, *, from_float64: bool) -> np.ndarray:
    """Numbers cut to integers (`cvt.rzi`): those that do not fit become the nearest that does, in 16 bits or more."""
    wide = np.dtype(f"{dtype.kind}{max(2, dtype.itemsize)}")
    least, most = int(np.iinfo(wide).min), int(np.iinfo(wide).max)
    whole = np.trunc(values.astype(np.float64))
    fits = (whole >= float(least)) & (whole < float(most + 1))
    found = np.where(fits, whole, 0).astype(wide)
    found[whole >= float(most + 1)] = most
    found[whole < float(least)] = least
    if from_float64 or wide.itemsize == 8:
        found[np.isnan(whole)] = least or 1 << 8 * wide.itemsize - 1
    return found.astype(dtype)


def _larger(maximum: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A maximum of floats for which +0 is larger than −0."""
    return lambda x, y: _join_equal(x, y, maximum(x, y), np.bitwise_and)


def _smaller(minimum: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A minimum of floats for which −0 is smaller than +0."""
    return lambda x, y: _join_equal(x, y, minimum(x, y), np.bitwise_or)


def _join_equal(x: np.ndarray, y: np.ndarray, found: np.ndarray, join: Callable[..., np.ndarray]) -> np.ndarray:
    """`found`, but where two floats are equal the one whose bits `join` makes of theirs."""
    x, y = np.broadcast_arrays(x, y)
    integers = f"u{x.itemsize}"
    return np.where(x == y, join(x.view(integers), y.view(integers)).view(x.dtype), found)


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x − y · trunc(x / y), rounded as compiled kernels do, and x where y is infinite."""
    return np.where(np.isinf(y), x, _fma(-np.trunc(x / y), y, x))


def _fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x · y + z, rounded once."""
    wide = np.longdouble if x.dtype == np.float64 else np.float64
    return np.asarray((x.astype(wide) * y.astype(wide) + z.astype(wide)).astype(z.dtype))


def _high_product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The upper half of the bits of a product of unsigned integers."""
    bits = 8 * x.itemsize
    product = x.view(f"u{x.itemsize}").astype(object) * y.view(f"u{y.itemsize}").astype(object)
    return np.asarray((product >> bits).astype(f"u{x.itemsize}").view(x.dtype))


def _flush(values: np.ndarray) -> np.ndarray:
    """float32 numbers below the least normal one in size as zeros of their sign; other types as they are."""
    if values.dtype != np.float32:
        return values
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), values), values)
