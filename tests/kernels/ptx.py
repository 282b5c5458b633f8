"""What the PTX instructions of a small kernel mean, for kernels without loops: NumPy arrays in, an array out.

The meanings follow NVIDIA's PTX ISA, "Instruction Set". Every register holds an array of bits, one element for each
thread, as uint64; 32 threads in a row are a warp. Loads give the inputs in the order in which they stand in the code,
so addresses need no meaning. An instruction that has none makes its result unknown; to store that is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

INSTRUCTION = re.compile(r"(?:@(!?)(%p\d+)\s+)?([a-z]\w*(?:\.\w+)*)\s+([^;]*);")
OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
NUMBER = re.compile(r"-?\d+|0x[0-9A-Fa-f]+U?|0[fd][0-9A-Fa-f]+")
SMALL = {"bf16": (8, 7), "e4m3": (4, 3), "e5m2": (5, 2), "f16": (5, 10)}
"""Bits of the exponent and of the fraction of each narrow format."""
APPROXIMATE = re.compile(r"\b(approx|full|ftz)\b")
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


class Unknown:
    """The result of an instruction that has no meaning here."""

    def __init__(self, opcode: str) -> None:
        self.opcode = opcode


def bits_of(kind: str) -> int:
    """Width of an instruction's type, such as 32 for "f32"."""
    return int(re.findall(r"\d+", kind)[0])


@cache
def numbers_of(form: str) -> np.ndarray:
    """The number that each code of a narrow format stands for, by code."""
    exponent_bits, fraction_bits = SMALL[form]
    codes = np.arange(1 << 1 + exponent_bits + fraction_bits)
    fraction, rest = codes % (1 << fraction_bits), codes >> fraction_bits
    exponent, sign = rest % (1 << exponent_bits), np.where(rest >> exponent_bits, -1.0, 1.0)
    bias, top = (1 << exponent_bits - 1) - 1, (1 << exponent_bits) - 1
    normal = np.ldexp(1 + fraction / 2.0**fraction_bits, exponent - bias)
    found = sign * np.where(exponent == 0, np.ldexp(fraction / 2.0**fraction_bits, 1 - bias), normal)
    if form == "e4m3":  # no infinity, and one NaN of each sign
        found[(exponent == top) & (fraction == (1 << fraction_bits) - 1)] = np.nan
    else:
        found[exponent == top] = np.where(fraction == 0, sign * np.inf, np.nan)[exponent == top]
    return found


def narrow(values: np.ndarray, form: str, *, rounding: str = "rn", saturate: bool = False) -> np.ndarray:
    """The code nearest to each number, the even one of two that are as near, or the nearest one towards zero."""
    numbers, sign_bit = numbers_of(form), len(numbers_of(form)) // 2
    finite = np.flatnonzero(np.isfinite(numbers[:sign_bit]))
    ladder = [Fraction(float(one)) for one in numbers[finite]]
    infinity = finite[-1] if saturate or form == "e4m3" else finite[-1] + 1
    as_floats = numbers[finite]
    found = []
    for value in values.tolist():
        if value != value:
            found.append(sign_bit - 1)
            continue
        sign = sign_bit if value < 0 or (value == 0 and str(value)[0] == "-") else 0
        if value in (np.inf, -np.inf):
            found.append(sign + infinity)
            continue
        size = abs(Fraction(value))
        below = int(np.searchsorted(as_floats, float(size), side="right")) - 1
        below -= ladder[below] > size
        step = ladder[below + 1] - ladder[below] if below + 1 < len(ladder) else ladder[-1] - ladder[-2]
        twice = 2 * (size - ladder[below])
        up = rounding == "rn" and (twice > step or (twice == step and below % 2 == 1))
        code = below + int(up)
        found.append(sign + (code if code < len(ladder) else infinity))
    return np.array(found, dtype=np.uint64)


def read(bits: np.ndarray, kind: str) -> np.ndarray:
    """The numbers that registers hold, read as an instruction's type; integers as Python's."""
    if kind == "pred":
        return bits.astype(bool)
    width = bits_of(kind)
    cut = bits.astype(f"u{width // 8}")
    if kind == "bf16":
        return numbers_of("bf16")[cut].astype(np.float32)
    if kind[0] == "f":
        return cut.view(f"f{width // 8}")
    return (cut.view(f"i{width // 8}") if kind[0] == "s" else cut).astype(object)


def write(values: Any, kind: str) -> np.ndarray:
    """The bits of numbers of an instruction's type."""
    if kind == "pred":
        return np.asarray(values, dtype=np.uint64)
    if kind == "bf16":
        return narrow(np.asarray(values, dtype=np.float64), "bf16")
    width = bits_of(kind)
    if kind[0] == "f":
        return np.asarray(values, dtype=f"f{width // 8}").view(f"u{width // 8}").astype(np.uint64)
    return np.array([int(value) % (1 << width) for value in values], dtype=np.uint64)


def largest(x: np.ndarray, y: np.ndarray, *, least: bool, nan: bool) -> np.ndarray:
    """`max` and `min`: without `.NaN` the number where one is NaN; +0 is larger than −0."""
    key_x, key_y = (list(zip(one.tolist(), (~np.signbit(one)).tolist(), strict=True)) for one in (x, y))
    chosen = [(a < b) == least for a, b in zip(key_x, key_y, strict=True)]
    found = np.where([c or a == b for c, a, b in zip(chosen, key_x, key_y, strict=True)], x, y)
    either, both = np.isnan(x) | np.isnan(y), np.isnan(x) & np.isnan(y)
    found = np.where(either, np.where(np.isnan(x), y, x), found)
    return np.where(either if nan else both, x.dtype.type(np.nan), found)


def flush(values: np.ndarray, opcode: str) -> np.ndarray:
    """float32 below the least normal number as 0, where the instruction says `.ftz`."""
    small = (values.dtype == np.float32) & (np.abs(values) < np.finfo(np.float32).tiny)
    return np.where(small, np.copysign(values.dtype.type(0), values), values) if ".ftz" in opcode else values


def fused(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x · y + z, rounded once (from 64 bits of an exact product)."""
    wide = np.longdouble
    return (x.astype(wide) * y.astype(wide) + z.astype(wide)).astype(z.dtype)


def to_integer(values: np.ndarray, source: str, target: str) -> list[int]:
    """`cvt.rzi`: cut towards zero, held to the range of the target; NaN is 0, or the sign's bit alone from or to 64."""
    width = bits_of(target)
    least, most = (-(1 << width - 1), (1 << width - 1) - 1) if target[0] == "s" else (0, (1 << width) - 1)
    nan = 1 << width - 1 if source == "f64" or width == 64 else 0
    whole = [nan if v != v else most if v == np.inf else least if v == -np.inf else int(v) for v in values.tolist()]
    return [v if v == nan else min(max(v, least), most) for v in whole]


def convert(opcode: str, operands: Sequence[np.ndarray]) -> np.ndarray:
    """`cvt`, by its target and its source."""
    *how, target, source = opcode.split(".")[1:]
    bits = operands[-1]
    if target in ("e4m3x2", "e5m2x2"):  # the last operand, or the lower half, is stored
        values = read(bits, "f16" if source == "f16x2" else source).astype(np.float64)
        return narrow(values, target[:4], saturate="satfinite" in how)
    if source in ("e4m3x2", "e5m2x2"):
        low = numbers_of(source[:4])[(bits & 0xFF).astype(int)]
        return narrow(low, "f16")
    values = read(bits, source)
    if target[0] in "su":
        return write(to_integer(values, source, target) if source[0] in "fb" else values, target)
    if source[0] in "su":
        exact = np.array([Fraction(int(v)) for v in values], dtype=object)
        return narrow_exact(exact, target)
    if target == source:  # to an integer in the same type
        rounders = {"rpi": np.ceil, "rmi": np.floor, "rzi": np.trunc}
        (rounder,) = (rounders[one] for one in how if one in rounders)
        return write(rounder(flush(values, opcode)), target)
    if target in SMALL:
        return narrow(values.astype(np.float64), target, rounding="rz" if "rz" in how else "rn")
    return write(values.astype(np.float64), target)


def narrow_exact(values: np.ndarray, target: str) -> np.ndarray:
    """Integers rounded to a floating-point type once."""
    if target in SMALL:
        return narrow(values, target)
    as_float32 = {"f32": np.float32, "f64": np.float64}[target]
    return write([as_float32(np.longdouble(int(v))) for v in values], target)


def shuffle(opcode: str, bits: np.ndarray, distance: int) -> np.ndarray:
    """`shfl.sync`: the register of another thread of the warp; of its own where there is none."""
    lane = np.arange(32)
    other = lane ^ distance if ".bfly" in opcode else np.where(lane < distance, lane, lane - distance)
    return bits.reshape(-1, 32)[:, other].reshape(-1)


def reduce_warp(opcode: str, bits: np.ndarray, kind: str) -> np.ndarray:
    """`redux.sync`: one number for the warp."""
    operation = {"add": sum, "max": max, "min": min}[opcode.split(".")[2]]
    warps = read(bits, kind).reshape(-1, 32)
    return np.repeat(write([operation(warp) for warp in warps], kind), 32)


def permute_bytes(a: np.ndarray, b: np.ndarray, selector: int) -> np.ndarray:
    """`prmt.b32`: four of eight bytes."""
    both = (a & 0xFFFFFFFF) | b << np.uint64(32)
    picks = [both >> np.uint64(8 * (selector >> 4 * i & 7)) & np.uint64(0xFF) for i in range(4)]
    return sum((pick << np.uint64(8 * i) for i, pick in enumerate(picks)), np.zeros_like(a))


def select_bits(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: int) -> np.ndarray:
    """`lop3.b32`: any function of three bits, by its table."""
    found = np.zeros_like(a)
    for row in range(8):
        if table >> row & 1:
            parts = [one if row >> place & 1 else ~one for one, place in ((a, 2), (b, 1), (c, 0))]
            found |= parts[0] & parts[1] & parts[2]
    return found & np.uint64(0xFFFFFFFF)


def _divide(x: Any, y: Any, *, remainder: bool = False) -> list[int]:
    """Quotients cut towards zero, or remainders; by 0, which only threads of another branch do, 0."""
    whole = [abs(a) // (abs(b) or abs(a) + 1) * (1 if (a < 0) == (b < 0) else -1) for a, b in zip(x, y, strict=True)]
    return [a - q * b for a, b, q in zip(x, y, whole, strict=True)] if remainder else whole


def apply(opcode: str, operands: list[np.ndarray]) -> np.ndarray | Unknown:
    """The result of an instruction on the bits of its operands."""
    head, *_, kind = opcode.removesuffix("x2").split(".")  # of two numbers in one register the lower is followed
    if head == "cvt":
        return convert(opcode, operands)
    if head == "selp":
        return np.where(operands[2].astype(bool), operands[0], operands[1])
    if head == "shfl":
        return shuffle(opcode, operands[0], int(operands[1][0]))
    if head == "redux":
        return reduce_warp(opcode, operands[0], kind)
    if head == "lop3":
        return select_bits(*operands[:3], int(operands[3][0]))
    if head == "prmt":
        return permute_bytes(operands[0], operands[1], int(operands[2][0]))
    if head in ("and", "or", "xor"):
        operation = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[head]
        return operation(*operands)
    if head in ("shl", "shr"):
        width, amount = bits_of(kind), [min(int(one), 64) for one in read(operands[1], "u32")]
        values = read(operands[0], kind)
        moved = [v << n if head == "shl" else v >> n for v, n in zip(values, amount, strict=True)]
        return write([0 if head == "shl" and n >= width else m for m, n in zip(moved, amount, strict=True)], kind)
    if head == "not":
        return write(1 - operands[0] if kind == "pred" else [~int(v) for v in read(operands[0], kind)], kind)
    x = [flush(read(one, kind), opcode) if kind[0] in "fb" and kind[1] != "8" else read(one, kind) for one in operands]
    if head == "setp":
        comparison = opcode.split(".")[1]
        if comparison in ("nan", "num"):
            return write((np.isnan(x[0]) | np.isnan(x[1])) == (comparison == "nan"), "pred")
        found = COMPARISONS[comparison[:2]](x[0], x[1])
        if kind[0] in "fb" and x[0].dtype.kind == "f":
            unordered = np.isnan(x[0]) | np.isnan(x[1])
            found = (found | unordered) if len(comparison) == 3 else (found & ~unordered)
        return write(np.asarray(found, dtype=bool), "pred")
    if head == "testp":
        return write(np.isinf(x[0]), "pred")
    if kind[0] in "fb" and x[0].dtype.kind == "f":
        floats: dict[str, Callable[..., Any]] = {
            "add": lambda: x[0] + x[1],
            "sub": lambda: x[0] - x[1],
            "mul": lambda: x[0] * x[1],
            "div": lambda: x[0] / x[1],
            "max": lambda: largest(x[0], x[1], least=False, nan=".NaN" in opcode),
            "min": lambda: largest(x[0], x[1], least=True, nan=".NaN" in opcode),
            "abs": lambda: np.abs(x[0]),
            "neg": lambda: -x[0],
            "fma": lambda: fused(*x),
            "ex2": lambda: np.exp2(x[0].astype(np.float64)).astype(x[0].dtype),
            "lg2": lambda: np.log2(x[0]),
            "sqrt": lambda: np.sqrt(x[0]),
            "rsqrt": lambda: 1 / np.sqrt(x[0]),
        }
        return write(flush(np.asarray(floats[head]()), opcode), kind) if head in floats else Unknown(opcode)
    integers: dict[str, Callable[..., Any]] = {
        "add": lambda: x[0] + x[1],
        "sub": lambda: x[0] - x[1],
        "mul": lambda: x[0] * x[1] >> (bits_of(kind) if ".hi" in opcode else 0),
        "div": lambda: _divide(x[0], x[1]),
        "rem": lambda: _divide(x[0], x[1], remainder=True),
        "max": lambda: np.maximum(x[0], x[1]),
        "min": lambda: np.minimum(x[0], x[1]),
        "abs": lambda: np.abs(x[0]),
        "neg": lambda: -x[0],
    }
    return write(integers[head](), kind) if head in integers and ".wide" not in opcode else Unknown(opcode)


def execute(ptx: str, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The bits that a kernel stores, from the bits of its inputs: one thread an element, as uint64."""
    waiting, registers = list(inputs), dict[str, Any]()
    lanes = len(inputs[0])
    active, arriving = np.ones(lanes, dtype=bool), dict[str, np.ndarray]()  # threads that have jumped, by their label
    registers["%tid.x"] = np.arange(lanes, dtype=np.uint64) % np.uint64(32)

    def value(text: str, half: int) -> Any:
        if text.startswith("{"):
            low, high = (value(part, half) for part in OPERAND.findall(text.strip("{} ")))
            return _mask(low, half) | (high << np.uint64(half) if isinstance(high, np.ndarray) else np.uint64(0))
        if NUMBER.fullmatch(text):
            number = int(text[2:], 16) if text[:2] in ("0f", "0d") else int(text.rstrip("U"), 0)
            return np.full(lanes, number % (1 << 64), dtype=np.uint64)
        return registers.get(text, Unknown(text))

    def assign(target: str, result: Any) -> None:
        before = registers.get(target)
        if isinstance(result, np.ndarray) and isinstance(before, np.ndarray):
            result = np.where(active, result, before)
        registers[target] = result

    with np.errstate(all="ignore"):
        for line in ptx.partition("{\n")[2].replace("\t", " ").splitlines():
            text = line.partition("//")[0].strip()
            active = active | arriving.pop(text.removesuffix(":"), np.zeros(lanes, dtype=bool))
            if (found := INSTRUCTION.search(text)) is None:
                continue
            negated, predicate, opcode, rest = found.groups()
            if opcode.startswith("bra"):
                jumps = active & (registers[predicate].astype(bool) != bool(negated)) if predicate else active
                label = rest.strip()
                arriving[label] = arriving.get(label, np.zeros(lanes, dtype=bool)) | jumps
                active = active & ~jumps
                continue
            target, *operands = OPERAND.findall(rest) or [""]
            half = bits_of(opcode) // 2 if opcode in ("mov.b32", "mov.b64") else 0
            if opcode.startswith("ld.global"):
                assign(target.strip("{ }"), waiting.pop(0))
                continue
            values = [value(one.strip("{ }") if opcode.startswith("st.") else one, half) for one in operands]
            if opcode.startswith("st.global"):
                if isinstance(values[0], Unknown):
                    raise AssertionError(f"no meaning is known for {values[0].opcode}")
                return np.asarray(values[0])
            if opcode.startswith(
                ("cvt.rn.satfinite.e", "prmt")
            ):  # of several values at once, of which not all are used
                values = [np.zeros(lanes, np.uint64) if isinstance(one, Unknown) else one for one in values]
            unknown = [one for one in values if isinstance(one, Unknown)]
            if unknown or not values:
                assign(target, unknown[0] if unknown else Unknown(opcode))
            elif opcode.startswith("mov") and target.startswith("{"):
                low, high = OPERAND.findall(target.strip("{ }"))
                assign(low, _mask(values[0], half))
                assign(high, values[0] >> np.uint64(half))
            else:
                assign(target, values[0] if opcode.startswith("mov") else apply(opcode, values))
    raise AssertionError("the kernel stores nothing")


def _mask(bits: np.ndarray, width: int) -> np.ndarray:
    return bits & np.uint64(2**width - 1)
