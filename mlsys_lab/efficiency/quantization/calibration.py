"""Choose scales and zero points for the numbers that share them: by largest magnitude, percentile or squared error.

Dimension letters: O rows, I inputs, G scales of a row, as in `Scheme`; K numbers that share a scale.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch.nn import functional as F

from mlsys_lab.efficiency.formats import E4M3, E8M0, ElementFormat, encode
from mlsys_lab.efficiency.quantization.scheme import Scheme
from mlsys_lab.efficiency.quantization.tensor import QuantizedTensor, from_codes, to_codes
from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_one_of

Clipping = Literal["max", "percentile", "mse"]
"""What a scale's range covers: all numbers; 99.9 % of them on either side, which are all where fewer than 1,000 share a
scale; or the fraction of the whole range with the least squared error."""
PERCENTILE = 99.9
RATIOS = tuple(1 - step / 50 for step in range(40))
"""Fractions of the whole range that "mse" tries."""


def quantize_tensor(x: torch.Tensor, scheme: Scheme, method: Clipping = "max") -> QuantizedTensor:
    """Quantize a matrix (O, I) by rounding each number to the nearest code; scales as in `choose_scale`."""
    tensor_scale = choose_tensor_scale(x, scheme)
    scale, zero_point = choose_scale(x, scheme, method, tensor_scale)
    return round_to_scale(x, scale, zero_point, scheme, tensor_scale)


def round_to_scale(
    x: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    scheme: Scheme,
    tensor_scale: torch.Tensor | None = None,
) -> QuantizedTensor:
    """Round a matrix (O, I) to the nearest codes of given scales and zero points (O, G)."""
    zeros = None if zero_point is None else zero_point[..., None]
    step = effective_scale(scale, tensor_scale)[..., None]
    codes = to_codes(scheme.split(x.detach()), step, zeros, scheme.format).reshape(x.shape)
    return QuantizedTensor(codes, scale, zero_point, scheme, tensor_scale)


def choose_scale(
    x: torch.Tensor, scheme: Scheme, method: Clipping = "max", tensor_scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scales and zero points for a matrix (O, I): both (O, G), the zero points in uint8 or None.

    The range always includes 0. A scale that its dtype cannot represent becomes the nearest that it can, so zeros have
    the smallest positive scale, and stay zeros. `tensor_scale` is that of `choose_tensor_scale` unless given.
    InputError for NaN and infinities, and if groups do not divide the inputs.
    """
    require_one_of("method of calibration", method, get_args(Clipping))
    _require_finite(x)
    if tensor_scale is None:
        tensor_scale = choose_tensor_scale(x, scheme)
    groups = scheme.split(x.detach().double())  # (O, G, K)
    if method == "percentile":
        low, high = _percentiles(groups)
    else:
        padded = F.pad(groups, (0, 1))  # with 0
        low, high = padded.amin(-1), padded.amax(-1)
    if method == "mse":
        return _least_squares(groups, low, high, scheme, tensor_scale)
    return _cover(low, high, scheme, tensor_scale)


def choose_tensor_scale(x: torch.Tensor, scheme: Scheme) -> torch.Tensor | None:
    """The fp32 scale () that maps the largest magnitude to the largest scale times the largest code; 1 for zeros.

    None unless the scheme has scales relative to it.
    """
    if not scheme.has_tensor_scale:
        return None
    largest = F.pad(x.detach().abs().flatten().double(), (0, 1)).amax()
    scale = (largest / (scheme.format.largest * E4M3.largest)).float()
    return scale.masked_fill(scale == 0, 1)


def effective_scale(scale: torch.Tensor, tensor_scale: torch.Tensor | None) -> torch.Tensor:
    """What codes are multiplied by, in float64: the scales (O, G) times that of the tensor."""
    return scale.double() if tensor_scale is None else scale.double() * tensor_scale


def _cover(
    low: torch.Tensor, high: torch.Tensor, scheme: Scheme, tensor_scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scales and zero points for ranges from `low` ≤ 0 to `high` ≥ 0, all (O, G)."""
    if scheme.symmetric:
        return _to_scales(torch.maximum(-low, high), scheme.format, scheme.scale_dtype, tensor_scale), None
    scale = _to_scales(high - low, scheme.format, scheme.scale_dtype, tensor_scale)
    zero_point = (-low / effective_scale(scale, tensor_scale)).round().clamp(0, scheme.format.largest)
    return scale, zero_point.to(torch.uint8)


def _to_scales(
    extent: torch.Tensor, format: ElementFormat, dtype: torch.dtype, tensor_scale: torch.Tensor | None
) -> torch.Tensor:
    """Scales (O, G) in `dtype` that map extents to the largest code.

    A power of two maps an extent into the last power of two of the codes instead, as in MX formats (v1.0, §6.3).
    """
    if dtype == torch.float8_e8m0fnu:
        exponent = torch.frexp(extent).exponent - math.frexp(format.largest)[1]
        codes = (exponent + 127).clamp(0, len(E8M0.finite) - 1).masked_fill(extent == 0, 0)
        return codes.to(torch.uint8).view(dtype)
    scale = extent / format.largest
    if dtype == torch.float8_e4m3fn:
        relative = scale if tensor_scale is None else scale / tensor_scale
        return encode(relative.clamp(min=E4M3.smallest_subnormal), E4M3).view(dtype)
    limits = torch.finfo(dtype)
    return scale.clamp(limits.smallest_normal * limits.eps, limits.max).to(dtype)


def _percentiles(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers below which all but 0.1 % of each group are, on either side of 0: (O, G) each."""
    count = groups.shape[-1]
    rank = max(1, math.ceil(count * PERCENTILE / 100))
    high = groups.kthvalue(rank, -1).values.clamp(min=0)
    low = groups.kthvalue(count + 1 - rank, -1).values.clamp(max=0)
    return low, high


def _least_squares(
    groups: torch.Tensor, low: torch.Tensor, high: torch.Tensor, scheme: Scheme, tensor_scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scales and zero points of the fraction of each range that gives its numbers the least squared error."""
    scale, zero_point = _cover(low, high, scheme, tensor_scale)
    least = torch.full_like(low, torch.inf)
    for ratio in RATIOS:
        tried, zeros = _cover(ratio * low, ratio * high, scheme, tensor_scale)
        step, shift = effective_scale(tried, tensor_scale)[..., None], None if zeros is None else zeros[..., None]
        rounded = from_codes(to_codes(groups, step, shift, scheme.format), step, shift, scheme.format)
        error = (rounded - groups).square().sum(-1)  # (O, G)
        better = error < least
        least = torch.where(better, error, least)
        scale = torch.where(better, tried.float(), scale.float()).to(scheme.scale_dtype)
        if zero_point is not None and zeros is not None:
            zero_point = torch.where(better, zeros, zero_point)
    return scale, zero_point


def _require_finite(x: torch.Tensor) -> None:
    """Raise InputError naming the first row with NaN or an infinity."""
    finite = x.isfinite().all(-1)
    if not finite.all():
        row = int((~finite).nonzero()[0, 0])
        raise InputError("numbers that are not finite", got=f"NaN or an infinity in row {row}", expected="numbers")
