"""Products with int8 and int4 weights on a CPU, compiled by Numba: weights are read once, as they are stored.

Activations are rounded to 16-bit integers, with a scale for each group of inputs, so that products are sums of
integers: codes of weights need no conversion to floats, and a CPU multiplies and adds twice as many 16-bit integers as
floats in one instruction. An activation is off by at most half its group's scale, which is the largest activation of
the group / 32,767. So an output is off by at most Σᵢ |weightᵢ| · (half the scale of input i), plus fp32 rounding:
products of codes are added exactly by fours, then in fp32, and zero points are subtracted from the sums.

Letters: n rows of activations, O outputs, I inputs, G groups of inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mlsys_lab.kernels.quantized_matmul.vectors import BLOCK, HALF, add_int4_block, add_int8_block, sum_lanes, zeros
from mlsys_lab.kernels.runtime import compile_for_cpu

MAX_CODE = 32767
"""Largest code of an activation."""
SMALLEST = np.float32(1e-30)
"""A group without larger activations is rounded to zeros: the inverse of its scale would overflow fp32."""
INFINITY_BITS = 0x7F800000
"""Bits of fp32's infinity; those of a NaN without its sign are larger, those of finite numbers smaller."""
SIGN_BITS, SIGNED_ZERO = np.uint8(0x88), np.uint8(8)
"""Sign bits of a byte's two codes, and what a code in two's complement gains when its sign bit is flipped."""
FLOAT32, FLOAT16, BFLOAT16 = range(3)
SCALE_DTYPES = {
    torch.float32: (torch.uint32, FLOAT32),
    torch.float16: (torch.uint16, FLOAT16),
    torch.bfloat16: (torch.uint16, BFLOAT16),
}
"""Dtype of the bits of a scale, and its kind for `_to_float`: Numba has no 16-bit floats on a CPU."""
HALF_EXPONENT = np.float32(2.0**112)
"""The ratio between a number of fp16 and that of fp32 with the same bits of exponent."""


def multiply_int8(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """x · Wᵀ with weights code · scale, of int8 codes (O, I) and scales (O,): x (n, I) in fp32 -> (n, O).

    A row with an infinity or a NaN gives NaN.
    """
    out = x.new_empty(len(x), len(codes))
    _multiply_int8(x.numpy(), codes.numpy(), scale.float().numpy(), out.numpy())
    return out


def multiply_int4(x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor | None) -> Tensor:
    """x · Wᵀ with weights (code - zero point) · scale, of codes in packed (O, I/2): x (n, I) in fp32 -> (n, O).

    `scale` and `zero_point`, in uint8, are (O, G). Without zero points, codes are in two's complement. A row with an
    infinity or a NaN gives NaN.
    """
    bits, kind = SCALE_DTYPES[scale.dtype]
    zero_points = None if zero_point is None else zero_point.numpy()
    out = x.new_empty(len(x), len(packed))
    _multiply_int4(x.numpy(), packed.numpy(), scale.view(bits).numpy(), kind, zero_points, out.numpy())
    return out


@compile_for_cpu
def _multiply_int8(x: Any, codes: Any, scale: Any, out: Any) -> None:
    O, I = codes.shape
    activations, x_scale, is_finite = _round(x, BLOCK)
    weights, inputs, end = codes.reshape(O * I), activations.reshape(len(x) * I), I // BLOCK * BLOCK
    for o in range(O):
        for row in range(len(x)):
            lanes = zeros()
            for i in range(0, end, BLOCK):
                lanes = add_int8_block(lanes, weights, o * I + i, inputs, row * I + i, x_scale[row, i // BLOCK])
            total = sum_lanes(lanes)
            for i in range(end, I):
                total += np.float32(weights[o * I + i] * np.int32(inputs[row * I + i])) * x_scale[row, i // BLOCK]
            out[row, o] = total * scale[o]
    _mark(is_finite, out)


@compile_for_cpu
def _multiply_int4(x: Any, packed: Any, scale: Any, kind: int, zero_point: Any, out: Any) -> None:
    (O, H), G, n = packed.shape, scale.shape[1], len(x)  # H bytes of an output's codes
    group = max(1, 2 * H // max(1, G))
    activations, x_scale, is_finite = _round(x, group)
    even, odd, sums = _deinterleave(activations, group)
    flat, flip = packed.reshape(O * H), SIGN_BITS if zero_point is None else np.uint8(0)
    scales = np.empty(G, np.float32)
    for o in range(O):
        for row in range(n):
            zeros_total = np.float32(0)  # zero points times activations
            for g in range(G):
                scales[g] = _to_float(scale[o, g], kind) * x_scale[row, g]
                zero = np.float32(SIGNED_ZERO if zero_point is None else zero_point[o, g])
                zeros_total += scales[g] * zero * sums[row, g]
            lanes, start, at, end = zeros(), o * H, row * H, 0
            if group == HALF:
                for g in range(0, G - 1, 2):
                    lanes = add_int4_block(
                        lanes, flat, start + end, flip, even, odd, at + end, scales[g], scales[g + 1]
                    )
                    end += BLOCK // 2
            elif group % BLOCK == 0:
                for g in range(G):
                    for _ in range(group // BLOCK):
                        lanes = add_int4_block(
                            lanes, flat, start + end, flip, even, odd, at + end, scales[g], scales[g]
                        )
                        end += BLOCK // 2
            total = sum_lanes(lanes)
            for byte in range(end, H):
                codes = flat[start + byte] ^ flip
                total += scales[2 * byte // group] * np.float32((codes & 15) * np.int32(even[at + byte]))
                total += scales[(2 * byte + 1) // group] * np.float32((codes >> 4) * np.int32(odd[at + byte]))
            out[row, o] = total - zeros_total
    _mark(is_finite, out)


@compile_for_cpu
def _round(x: Any, group: int) -> Any:
    """Round activations (n, I) to int16 codes (n, I) with scales (n, G), of `group` inputs or fewer each.

    The third result says for each row whether it is finite; if not, its codes are zeros.
    """
    n, I = x.shape
    codes, scales = np.empty((n, I), np.int16), np.empty((n, (I + group - 1) // group), np.float32)
    bits, is_finite = x.view(np.int32), np.ones(n, np.bool_)
    for row in range(n):
        for g in range(scales.shape[1]):
            first, end = g * group, min(I, (g + 1) * group)
            largest = np.int32(0)  # bits of the largest magnitude; without their sign, bits are ordered as the numbers
            for i in range(first, end):
                largest = max(largest, np.int32(bits[row, i] & np.int32(0x7FFFFFFF)))
            magnitude = _from_bits(np.uint32(largest))
            is_finite[row] &= largest < INFINITY_BITS
            is_zero = largest >= INFINITY_BITS or magnitude < SMALLEST
            inverse = np.float32(0) if is_zero else np.float32(MAX_CODE) / magnitude
            scales[row, g] = np.float32(0) if is_zero else magnitude / np.float32(MAX_CODE)
            for i in range(first, end):
                scaled = x[row, i] * inverse
                codes[row, i] = np.int32(scaled + np.float32(0.5 if scaled > 0 else -0.5))  # truncated
    return codes, scales, is_finite


@compile_for_cpu
def _deinterleave(codes: Any, group: int) -> Any:
    """Codes (n, I) of even inputs and of odd ones, (n, I/2) each, and the sums of the groups in fp32, (n, G)."""
    n, H = len(codes), codes.shape[1] // 2
    even, odd = np.empty(n * H, np.int16), np.empty(n * H, np.int16)
    sums = np.empty((n, 2 * H // group), np.float32)
    for row in range(n):
        for byte in range(H):
            even[row * H + byte], odd[row * H + byte] = codes[row, 2 * byte], codes[row, 2 * byte + 1]
        for g in range(sums.shape[1]):
            total = 0
            for i in range(g * group, (g + 1) * group):
                total += codes[row, i]
            sums[row, g] = total
    return even, odd, sums


@compile_for_cpu
def _to_float(bits: Any, kind: int) -> Any:
    """The fp32 number of the bits of one, or of a finite one of 16 bits."""
    bits32 = np.uint32(bits)
    if kind == FLOAT32:
        return _from_bits(bits32)
    if kind == BFLOAT16:
        return _from_bits(bits32 << np.uint32(16))
    sign, magnitude = (bits32 & np.uint32(0x8000)) << np.uint32(16), (bits32 & np.uint32(0x7FFF)) << np.uint32(13)
    return _from_bits(sign | magnitude) * HALF_EXPONENT


@compile_for_cpu
def _from_bits(bits: Any) -> Any:
    """The fp32 number of 32 bits; Numba takes them from a variable with one definition only."""
    bits32 = np.uint32(bits)
    return bits32.view(np.float32)


@compile_for_cpu
def _mark(is_finite: Any, out: Any) -> None:
    """Write NaN to the rows that are not finite; it must not go through arithmetic that may ignore it (fastmath)."""
    for row in range(len(out)):
        if not is_finite[row]:
            out[row] = np.nan
