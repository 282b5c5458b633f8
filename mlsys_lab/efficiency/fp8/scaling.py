"""Scales of 8-bit tensors: they move a tensor's numbers into the range of a format that has few exponents.

All scales are powers of two, so that dividing by a scale and multiplying with it is exact, and only the cast to 8 bits
rounds. Dimension letters: R rows, C columns; r and c are those of a tile that shares a scale.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.efficiency.formats import E4M3, E5M2, FloatFormat
from mlsys_lab.errors import InputError
from mlsys_lab.flops.number_formats import FLOAT_FORMATS
from mlsys_lab.validation import require_at_least_one, require_integer

BF16 = FLOAT_FORMATS["bf16"]
DTYPES = {E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2, BF16: torch.bfloat16}
"""The dtype of torch that has a format's codes."""
SMALLEST_EXPONENT, LARGEST_EXPONENT = -126, 127
"""Exponents of scales: those of normal fp32 numbers, whose reciprocals are in fp32 too."""


class ScaledTensor(NamedTuple):
    """A tensor in a format of few bits: codes (R, C), and a scale for each tile, fp32 (R/r, C/c) rounded up, or ()."""

    codes: torch.Tensor
    scale: torch.Tensor
    tile: tuple[int, int] | None = None

    def dequantize(self) -> torch.Tensor:
        """Numbers that the codes stand for, exact in fp32: (R, C)."""
        return _decode(self.codes).mul_(_expand(self.scale, self.tile, self.codes.shape))


class Operand(NamedTuple):
    """A matrix (R, C) in few bits, for a product that sums along its rows, and for one that sums along its columns.

    Tiles lie along the sum, so that a partial sum has one scale (DeepSeek-V3, arXiv:2412.19437, §3.3.2). Where both
    have the same tiles, `along_rows` and `along_columns` are the same object.
    """

    along_rows: ScaledTensor
    along_columns: ScaledTensor


class Scaling(nn.Module, ABC):
    """Casts one tensor of a layer (its inputs, weights or output gradients) at each training step, with its scales."""

    def __init__(self, format: FloatFormat) -> None:
        super().__init__()
        if format not in DTYPES:
            expected = "E4M3, E5M2 or bf16"
            raise InputError("no dtype of torch for this format", got=f"{format.bits} bits", expected=expected)
        self.format = format

    @abstractmethod
    def forward(self, x: torch.Tensor) -> Operand:
        """Cast a matrix of finite numbers, (R, C) in any floating-point dtype."""


class NoScaling(Scaling):
    """Cast without a scale, as 16-bit formats allow; most gradients are too small for 8 bits."""

    def forward(self, x: torch.Tensor) -> Operand:
        """Cast a matrix (R, C) with a scale of 1."""
        cast = cast_scaled(x, torch.ones((), device=x.device), self.format)
        return Operand(cast, cast)


class CurrentScaling(Scaling):
    """A scale for the tensor, from its own largest magnitude: exact range, but the tensor is read twice."""

    def forward(self, x: torch.Tensor) -> Operand:
        """Cast a matrix (R, C) so that its largest magnitude is in the upper half of the range, and none saturates."""
        cast = cast_scaled(x, choose_scale(_amax(x), self.format), self.format)
        return Operand(cast, cast)


class DelayedScaling(Scaling):
    """A scale for the tensor, from the largest magnitudes of earlier steps: the cast need not wait for this step's.

    The recipe of Transformer Engine, after Micikevicius et al. 2022 (arXiv:2209.05433, §3). `history` (S,) has the
    largest magnitudes of the last S calls in training mode, zero where there are none yet or a tensor was not finite.
    The scale comes from their maximum, and is 1 in the first call; `margin` leaves as many powers of two unused, for
    magnitudes that grow. Numbers beyond the range saturate.
    """

    history: torch.Tensor

    def __init__(self, format: FloatFormat, *, history_length: int = 16, margin: int = 0) -> None:
        super().__init__(format)
        require_at_least_one(history_length=history_length)
        require_integer("margin", margin, at_least=0)
        self.margin = margin
        self.register_buffer("history", torch.zeros(history_length))

    def forward(self, x: torch.Tensor) -> Operand:
        """Cast a matrix (R, C) with the scale of earlier calls; in training mode, remember its largest magnitude."""
        cast = cast_scaled(x, choose_scale(self.history.amax(), self.format) * 2.0**self.margin, self.format)
        if self.training:
            self.history = self.history.roll(1)
            self.history[0] = _amax(x).nan_to_num(0, posinf=0)
        return Operand(cast, cast)


class BlockScaling(Scaling):
    """A scale for each tile, from the tile's largest magnitude: an outlier costs its neighbours their bits, no more.

    DeepSeek-V3 (arXiv:2412.19437, §3.3.2): tiles of 1 × 128 for activations and gradients, which must be cast twice
    (1 × 128 and 128 × 1, one for either direction of the sum), and square ones of 128 × 128 for weights. The last tiles
    are smaller where tiles do not divide the matrix.
    """

    def __init__(self, format: FloatFormat, tile: tuple[int, int]) -> None:
        super().__init__(format)
        require_at_least_one(rows=tile[0], columns=tile[1])
        self.tile = tile

    def forward(self, x: torch.Tensor) -> Operand:
        """Cast a matrix (R, C) tile by tile, in both directions unless tiles are square."""
        rows, columns = self.tile
        along_rows = self._cast(x, (rows, columns))
        return Operand(along_rows, along_rows if rows == columns else self._cast(x, (columns, rows)))

    def _cast(self, x: torch.Tensor, tile: tuple[int, int]) -> ScaledTensor:
        return cast_scaled(x, choose_scale(_tile_amax(x.detach(), tile), self.format), self.format, tile)


def choose_scale(amax: torch.Tensor, format: FloatFormat) -> torch.Tensor:
    """Smallest powers of two, in fp32, by which magnitudes divided are in a format's range; 1 for 0 and for NaN.

    >>> choose_scale(torch.tensor([448.0, 449.0, 1e-6]), E4M3).log2().tolist()
    [0.0, 1.0, -28.0]
    """
    mantissa, exponent = torch.frexp(amax.double() / format.largest)
    exponent = exponent - (mantissa == 0.5).int()
    exponent = exponent.clamp(SMALLEST_EXPONENT, LARGEST_EXPONENT).masked_fill((amax == 0) | ~amax.isfinite(), 0)
    return torch.ldexp(torch.ones_like(mantissa), exponent).float()


def cast_scaled(
    x: torch.Tensor, scale: torch.Tensor, format: FloatFormat, tile: tuple[int, int] | None = None
) -> ScaledTensor:
    """Divide a matrix (R, C) by its scales and cast it to a format's dtype: to nearest, ties to even, saturating.

    torch casts beyond the range to infinity in E5M2, so numbers are clamped first; an infinity saturates, NaN remains.
    """
    scaled = x.detach().float() / _expand(scale, tile, x.shape)
    return ScaledTensor(scaled.clamp_(-format.largest, format.largest).to(DTYPES[format]), scale, tile)


def _decode(codes: torch.Tensor) -> torch.Tensor:
    """Numbers of codes in fp32: `codes.float()`, for which torch takes about four times as long on a CPU in E4M3."""
    if codes.element_size() > 1:
        return codes.float()
    values = torch.arange(256, device=codes.device).to(torch.uint8).view(codes.dtype).float()
    return values.index_select(0, codes.view(torch.uint8).int().flatten()).view(codes.shape)


def _amax(x: torch.Tensor) -> torch.Tensor:
    """Largest magnitude of a tensor, (); 0 for an expert without tokens."""
    return x.detach().abs().amax().float() if x.numel() else x.new_zeros((), dtype=torch.float32)


def _tile_amax(x: torch.Tensor, tile: tuple[int, int]) -> torch.Tensor:
    """Largest magnitude of each tile: (R, C) -> (R/r, C/c), rounded up."""
    (rows, columns), (down, across) = tile, (-(-size // count) for size, count in zip(x.shape, tile, strict=True))
    padded = F.pad(x.abs(), (0, across * columns - x.shape[1], 0, down * rows - x.shape[0]))
    return padded.view(down * rows, across, columns).amax(-1).view(down, rows, across).amax(1)


def _expand(scale: torch.Tensor, tile: tuple[int, int] | None, shape: torch.Size) -> torch.Tensor:
    """The scale of each number, (R, C), or () if the tensor has one."""
    if tile is None:
        return scale
    for axis, count in enumerate(tile):
        if count > 1:
            scale = scale.repeat_interleave(count, axis).narrow(axis, 0, shape[axis])
    return scale
