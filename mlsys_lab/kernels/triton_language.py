"""Triton for a file of kernels: `triton` and `tl`, interpreting without a GPU and compiling with one, and `dot`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlsys_lab.kernels.runtime import load_triton, triton_interprets

if TYPE_CHECKING:
    import triton
    from triton import language as tl
else:
    triton, tl = load_triton()

__all__ = ["LN_2", "LOG2_E", "dot", "tl", "triton"]

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
INTERPRETED = tl.constexpr(triton_interprets())


@triton.jit
def dot(a, b, accumulator, PRECISION: tl.constexpr):
    """Multiply two tiles in float32 and add the accumulator, if there is one.

    On a GPU this is `tl.dot`: tensor cores, float32 accumulation. Triton's interpreter (3.6 to 3.9) stores bfloat16 as
    raw bits and would multiply those, so there the operands are converted to float32 first. The results are the same:
    a product of two 16-bit floats is exact in float32.
    """
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), accumulator)
    return tl.dot(a, b, accumulator, input_precision=PRECISION)
