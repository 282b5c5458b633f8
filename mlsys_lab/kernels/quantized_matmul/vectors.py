"""Products of 64 weights and activations in vectors, for functions that Numba compiles for a CPU.

LLVM vectorises a plain loop over a group of 32 weights badly or not at all, and a sum per group costs more than its
products. Here the products of a block stay in 16 lanes, are scaled there, and the lanes are added up once for a whole
output. The instructions are LLVM's own for vectors of any width, which it turns into those of the CPU; x86 multiplies
and adds pairs of 16-bit integers in one (`vpmaddwd`, `vpdpwssd`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from mlsys_lab.kernels.runtime import load_numba_for_cpu

types: Any = load_numba_for_cpu().types
extending: Any = import_module("numba.extending")
ir: Any = import_module("llvmlite.ir")

BLOCK = 64
"""Weights of a block."""
HALF = BLOCK // 2
"""Weights of a block with one scale; also bytes of 4-bit codes, and numbers that are loaded at a time."""
LANES = BLOCK // 4
"""Float32 numbers of a vector, the size of a register of AVX-512: each adds the products of four weights."""
FAST = ("fast",)
"""Floating-point operations may be reordered, as in `compile_for_cpu`."""

INT32, FLOAT32 = ir.IntType(32), ir.FloatType()
BYTES, SHORTS, INTS = (ir.VectorType(ir.IntType(bits), HALF) for bits in (8, 16, 32))
FLOATS, TWO_FLOATS = ir.VectorType(FLOAT32, LANES), ir.VectorType(FLOAT32, 2)

Code = tuple[Any, Callable[..., Any]]
"""A signature, and the function that builds its instructions from (context, builder, signature, arguments)."""


def instructions(describe: Callable[..., Code]) -> Any:
    """A function for compiled code, whose types and instructions `describe` finds from the types of its arguments."""
    return extending.intrinsic(describe)


class _Lanes(types.Type):  # type: ignore[misc]
    """Numba's type of a vector of `LANES` float32 numbers."""

    def __init__(self) -> None:
        super().__init__("Lanes")


lanes = _Lanes()


@extending.register_model(_Lanes)
class _LanesModel(extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, FLOATS)


@instructions
def zeros(typing_context: Any) -> Code:
    """A vector of zeros."""
    return lanes(), lambda context, builder, signature, args: ir.Constant(FLOATS, [0.0] * LANES)


@instructions
def sum_lanes(typing_context: Any, x: Any) -> Code:
    """Add up the lanes of a vector, half and half."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (x,), half = args, LANES // 2
        while half:
            low, high = (_pick(builder, x, range(start, start + half)) for start in (0, half))
            x, half = builder.fadd(low, high, flags=FAST), half // 2
        return builder.extract_element(x, ir.Constant(INT32, 0))

    return types.float32(lanes), build


@instructions
def add_int8_block(
    typing_context: Any, total: Any, codes: Any, start: Any, activations: Any, first: Any, scale: Any
) -> Code:
    """Add to the lanes of `total`, times `scale`, the products of a block: codes[start], … and activations[first], ….

    Codes are int8, activations int16, both in contiguous arrays (any,); nothing checks that the block lies in them.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        total, _, start, _, first, scale = args
        sums = None
        for offset in (0, HALF):
            weights = builder.sext(_load(context, builder, signature, args, 1, start, BYTES, offset), SHORTS)
            products = _add_pairs(builder, weights, _load(context, builder, signature, args, 3, first, SHORTS, offset))
            sums = products if sums is None else builder.add(sums, products)
        return _add_scaled(builder, total, sums, [scale, scale])

    return lanes(lanes, codes, types.intp, activations, types.intp, types.float32), build


@instructions
def add_int4_block(
    typing_context: Any, total: Any, packed: Any, start: Any, flip: Any, even: Any, odd: Any, first: Any, scale: Any,
    other_scale: Any,
) -> Code:  # fmt: skip
    """Add the products of a block of 4-bit codes to the lanes of `total`, each half of the block times its scale.

    The codes are in packed[start], …, xor `flip`. The lower halves of bytes are multiplied with even[first], …, the
    upper ones with odd[first], …, both int16. Arrays are contiguous (any,); nothing checks that the block lies in them.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        total, _, start, flip, _, _, first, *scales = args
        flips = builder.insert_element(ir.Constant(BYTES, ir.Undefined), flip, ir.Constant(INT32, 0))
        packed = builder.xor(
            _load(context, builder, signature, args, 1, start, BYTES), _pick(builder, flips, [0] * HALF)
        )
        codes = builder.zext(packed, SHORTS)
        low = builder.and_(codes, ir.Constant(SHORTS, [15] * HALF))
        high = builder.lshr(codes, ir.Constant(SHORTS, [4] * HALF))
        products = (
            _add_pairs(builder, weights, _load(context, builder, signature, args, index, first, SHORTS))
            for index, weights in ((4, low), (5, high))
        )
        return _add_scaled(builder, total, builder.add(*products), scales)

    index, scale_type = types.intp, types.float32
    return lanes(lanes, packed, index, types.uint8, even, odd, index, scale_type, scale_type), build


def _load(
    context: Any, builder: Any, signature: Any, args: Any, index: int, start: Any, kind: Any, offset: int = 0
) -> Any:
    """Load a vector from an array, the argument `index`, from its element `start` + `offset` on."""
    array = context.make_array(signature.args[index])(context, builder, args[index])
    pointer = builder.gep(builder.gep(array.data, [start]), [ir.Constant(INT32, offset)])
    return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=kind.element.width // 8)


def _add_pairs(builder: Any, x: Any, y: Any) -> Any:
    """Multiply two vectors of 16-bit integers, and add the products of neighbours: `LANES` 32-bit integers."""
    product = builder.mul(builder.sext(x, INTS), builder.sext(y, INTS))
    return builder.add(*(_pick(builder, product, range(side, HALF, 2)) for side in (0, 1)))


def _add_scaled(builder: Any, total: Any, sums: Any, scales: Sequence[Any]) -> Any:
    """Add integers to the lanes of `total`, those of the first half times one scale, the second half times another."""
    both = ir.Constant(TWO_FLOATS, ir.Undefined)
    for side, scale in enumerate(scales):
        both = builder.insert_element(both, scale, ir.Constant(INT32, side))
    factors = _pick(builder, both, [0] * (LANES // 2) + [1] * (LANES // 2))
    return builder.fadd(total, builder.fmul(builder.sitofp(sums, FLOATS), factors, flags=FAST), flags=FAST)


def _pick(builder: Any, x: Any, places: Sequence[int]) -> Any:
    """The elements of a vector at some places."""
    order = ir.Constant(ir.VectorType(INT32, len(places)), list(places))
    return builder.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), order)
