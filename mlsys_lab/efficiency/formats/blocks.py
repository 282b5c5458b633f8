"""Block formats: neighbours along the last axis share a scale, so that few bits cover a tensor's range.

MX formats follow OCP Microscaling Formats v1.0 (Rouhani et al. 2023, arXiv:2310.10537): 32 elements and a power of two.
NVFP4 (NVIDIA 2025, arXiv:2509.25149) has 16 elements, a scale in E4M3, and a scale in fp32 for the tensor.
Dimension letters: K elements along the last axis, ... any leading axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional as F

from mlsys_lab.efficiency.formats.codes import Rounding, decode, encode, widen
from mlsys_lab.efficiency.formats.elements import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    CodeBook,
    ElementFormat,
    nan_code,
)
from mlsys_lab.errors import InputError
from mlsys_lab.flops.number_formats import FloatFormat, scaled_bits


@dataclass(frozen=True)
class BlockFormat:
    """Blocks of `block_size` elements with a scale each: in E8M0 as in MX, or in a `FloatFormat` as in NVFP4."""

    element: FloatFormat
    block_size: int
    scale: FloatFormat | CodeBook


MXFP8_E4M3, MXFP8_E5M2 = BlockFormat(E4M3, 32, E8M0), BlockFormat(E5M2, 32, E8M0)
MXFP6_E3M2, MXFP6_E2M3 = BlockFormat(E3M2, 32, E8M0), BlockFormat(E2M3, 32, E8M0)
MXFP4 = BlockFormat(E2M1, 32, E8M0)
NVFP4 = BlockFormat(E2M1, 16, E4M3)


class BlockCodes(NamedTuple):
    """A tensor in a block format: uint8 codes of the elements (..., K) and of the scales (..., K / block size).

    An element is its number times the block's scale times `tensor_scale`, fp32 (), which is 1 in MX formats.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    tensor_scale: torch.Tensor


def encode_blocks(
    x: torch.Tensor,
    format: BlockFormat,
    *,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    generator: torch.Generator | None = None,
) -> BlockCodes:
    """Encode floating-point numbers (..., K) in a block format; `rounding` is that of the elements.

    Elements saturate. A block with an infinity or NaN decodes as NaN, in NVFP4 the whole tensor. Numbers are divided by
    their scales in float64, which gives float32 numbers the codes of exact arithmetic. InputError if blocks do not
    divide K.
    """
    if x.ndim == 0 or x.shape[-1] % format.block_size:
        expected = f"the last axis a multiple of {format.block_size}"
        raise InputError("blocks do not divide the tensor", got=f"shape {tuple(x.shape)}", expected=expected)
    blocks = _split(widen(x).double(), format)
    amax = blocks.abs().amax(-1)
    amax = amax.masked_fill(~amax.isfinite(), torch.nan)
    if isinstance(format.scale, FloatFormat):
        scales, tensor_scale = _two_level_scales(amax, format.element, format.scale)
    else:
        scales, tensor_scale = _mx_scales(amax, format.element)
    scale = decode(scales, format.scale).double() * tensor_scale
    scaled = (blocks / scale[..., None]).nan_to_num(0)  # NaN where the scale is NaN
    codes = encode(scaled, format.element, rounding=rounding, generator=generator)
    return BlockCodes(codes.flatten(-2), scales, tensor_scale)


def decode_blocks(blocks: BlockCodes, format: BlockFormat) -> torch.Tensor:
    """Numbers of a tensor in a block format: float32 (..., K), exact but for the product with `tensor_scale`."""
    values = decode(_split(blocks.codes, format), format.element) * decode(blocks.scales, format.scale)[..., None]
    return (values * blocks.tensor_scale).flatten(-2)


def round_to_blocks(
    x: torch.Tensor,
    format: BlockFormat,
    *,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Numbers (..., K) rounded to a block format, in float32: `decode_blocks` of what `encode_blocks` gives."""
    return decode_blocks(encode_blocks(x, format, rounding=rounding, generator=generator), format)


def bits_per_weight(format: ElementFormat | BlockFormat, *scales: tuple[float, int]) -> float:
    """Bits of a weight with its part of the scales; `scales` as in `scaled_bits`, next to those of a block format.

    The fp32 scale that NVFP4 has for a whole tensor counts only if given: (32, number of weights).

    >>> from mlsys_lab.efficiency.formats import INT4
    >>> bits_per_weight(INT4, (16, 128)), bits_per_weight(MXFP4), bits_per_weight(NVFP4)
    (4.125, 4.25, 4.5)
    """
    if isinstance(format, BlockFormat):
        return scaled_bits(format.element.bits, (format.scale.bits, format.block_size), *scales)
    return scaled_bits(format.bits, *scales)


def _split(x: torch.Tensor, format: BlockFormat) -> torch.Tensor:
    """Blocks of a tensor (..., K): (..., K / block size, block size)."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // format.block_size, format.block_size)


def _mx_scales(amax: torch.Tensor, element: FloatFormat) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales 2^(floor(log₂ amax) - exponent of the element's largest number) (MX v1.0, §6.3), in E8M0.

    So amax / scale lies within the element's last power of two, and saturates where that goes beyond the largest
    number: from 448 to 512 in E4M3, from 6 to 8 in E2M1. The scale of a block of zeros is 2⁻¹²⁷.
    """
    exponent = torch.frexp(amax.nan_to_num(0)).exponent - 1 - element.largest_exponent
    codes = (exponent + 127).clamp(0, len(E8M0.finite) - 1).masked_fill(amax == 0, 0)
    return codes.to(torch.uint8).masked_fill(amax.isnan(), nan_code(E8M0) or 0), amax.new_ones((), dtype=torch.float32)


def _two_level_scales(
    amax: torch.Tensor, element: FloatFormat, scale: FloatFormat
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales in a `FloatFormat` that map a block's amax to the largest element, relative to a scale of the tensor.

    The tensor's scale maps its amax to the largest block scale times the largest element; it is 1 for zeros. A scale
    that would round to 0 becomes the smallest positive one.
    """
    tensor_scale = (F.pad(amax.flatten(), (0, 1)).amax() / (element.largest * scale.largest)).float()
    tensor_scale = tensor_scale.masked_fill(tensor_scale == 0, 1)
    relative = amax / (element.largest * tensor_scale.double())
    return encode(relative.clamp(min=scale.smallest_subnormal), scale), tensor_scale
