"""How a slot's keys and values are encoded: as they are, or in 8 bits with a scale for each head's vector.

Dimension letters: L layers, K key/value heads, H width of a head's vector, ... any number of slots. Of latent attention
one vector is kept for all heads, which is their key, and its beginning their value: K is 1 and H kv_rank + rope_dim.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch

from mlsys_lab.models import Transformer

Pair = tuple[torch.Tensor, torch.Tensor]


Slots = torch.Tensor | range
"""Numbers of slots, of any shape; a range stands for slots (n,) each of which lies behind the one before."""


def as_range(slots: torch.Tensor) -> range | None:
    """Slots (n,) as a range where each lies behind the one before, else None."""
    first, last = int(slots[0]), int(slots[-1])
    in_a_row = last - first + 1 == len(slots) and bool((slots.diff() == 1).all())
    return range(first, last + 1) if in_a_row else None


def gather(kept: torch.Tensor, slots: Slots) -> torch.Tensor:
    """Rows of `kept` (slots in all, ...) that these slots name; those of a range are not copied.

    Others are, four times as fast on a CPU as by kept[slots].
    """
    if isinstance(slots, range):
        return kept[slots.start : slots.stop]
    return kept.index_select(0, slots.flatten()).view(*slots.shape, *kept.shape[1:])


def put(kept: torch.Tensor, slots: Slots, rows: torch.Tensor) -> None:
    """Write rows over those of `kept` (slots in all, ...) that these slots name."""
    kept[slice(slots.start, slots.stop) if isinstance(slots, range) else slots] = rows


class Storage:
    """Slots for keys and values of every layer as they are, in the model's dtype: nothing is lost."""

    encoding: ClassVar[torch.dtype | None] = None
    """Dtype that numbers are kept in, where it is not the model's."""

    def __init__(self, model: Transformer, slots: int) -> None:
        c, weight = model.config, model.embedding.weight
        self.dtype = weight.dtype
        both, heads, width, self.value_width = 2, c.n_kv_heads, c.head_dim, c.head_dim
        if c.latent is not None:
            both, heads, width, self.value_width = 1, 1, c.latent.kv_rank + c.latent.rope_dim, c.latent.kv_rank
        shape = (both, c.n_layers, slots, heads, width)
        # Zeros, for a masked slot that was never written must not bring in a NaN: 0 · NaN is NaN.
        self.kept = torch.zeros(shape, dtype=self.encoding or weight.dtype, device=weight.device)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot: a token's keys and values in all layers."""
        return self.kept[:, :, 0].numel() * self.kept.element_size()

    def write(self, layer: int, slots: Slots, k: torch.Tensor, v: torch.Tensor) -> None:
        """Keep keys and values (..., K, H) of one layer in slots (...)."""
        for kept, x in zip(self.kept[:, layer], (k, v), strict=False):
            put(kept, slots, x)

    def read(self, layer: int, slots: Slots) -> Pair:
        """Keys and values of one layer in slots (...): two of (..., K, H), in the model's dtype."""
        keys, *values = (self._decode(side, layer, slots) for side in range(len(self.kept)))
        return keys, values[0] if values else keys[..., : self.value_width]

    def _decode(self, side: int, layer: int, slots: Slots) -> torch.Tensor:
        """Keys (`side` 0) or values (1) of one layer in slots (...): (..., K, H), in the model's dtype."""
        return gather(self.kept[side, layer], slots)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy slots (n,) over others (n,), in every layer."""
        for kept in self._encoded:
            kept[:, :, target] = kept[:, :, source]

    def save(self, slots: torch.Tensor) -> list[torch.Tensor]:
        """Contents of slots (n,), as they are encoded, in host memory."""
        return [kept[:, :, slots].cpu() for kept in self._encoded]

    def restore(self, slots: torch.Tensor, saved: list[torch.Tensor], first: int = 0) -> None:
        """Put what `save` gave, from its slot `first` on, into slots (n,)."""
        for kept, contents in zip(self._encoded, saved, strict=True):
            kept[:, :, slots] = contents[:, :, first : first + len(slots)].to(kept.device)

    @property
    def _encoded(self) -> list[torch.Tensor]:
        """All that is kept of the slots: tensors (both, L, slots, ...)."""
        return [self.kept]


class Scaled(Storage):
    """Keys and values in 8 bits: each head's vector is divided by a scale that takes its largest number to `largest`.

    Scales are fp32, one for the H numbers of a token's head: 4 bytes beside H.
    """

    largest: ClassVar[float]

    def __init__(self, model: Transformer, slots: int) -> None:
        super().__init__(model, slots)
        self.scales = torch.zeros(self.kept.shape[:-1], dtype=torch.float32, device=self.kept.device)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot: a token's keys and values in all layers, with their scales."""
        return super().slot_bytes + self.scales[:, :, 0].numel() * self.scales.element_size()

    def write(self, layer: int, slots: Slots, k: torch.Tensor, v: torch.Tensor) -> None:
        """Encode keys and values (..., K, H) of one layer and keep them in slots (...)."""
        for kept, scales, x in zip(self.kept[:, layer], self.scales[:, layer], (k, v), strict=False):
            for place, coded in zip((kept, scales), self.encode(x), strict=True):
                put(place, slots, coded)

    def _decode(self, side: int, layer: int, slots: Slots) -> torch.Tensor:
        scales = gather(self.scales[side, layer], slots).to(self.dtype)
        return super()._decode(side, layer, slots).to(self.dtype) * scales[..., None]

    @property
    def _encoded(self) -> list[torch.Tensor]:
        return [self.kept, self.scales]

    @classmethod
    def encode(cls, x: torch.Tensor) -> Pair:
        """Numbers in 8 bits and the scale of each vector: (..., H) -> (..., H) and (...,)."""
        scale = x.abs().amax(-1).float() / cls.largest
        scale = scale.masked_fill(scale == 0, 1)  # a vector of zeros
        return cls.round(x / scale[..., None].to(x.dtype)), scale

    @classmethod
    def round(cls, x: torch.Tensor) -> torch.Tensor:
        """Round scaled numbers to those that the encoding has."""
        raise NotImplementedError

    @classmethod
    def error_bound(cls, x: torch.Tensor) -> torch.Tensor:
        """Most by which each decoded number can differ from x, (..., H), before rounding in the model's dtype."""
        raise NotImplementedError


class Int8(Scaled):
    """Keys and values as whole numbers from -127 to 127: off by half a step, the vector's largest number / 254."""

    encoding, largest = torch.int8, 127.0

    @classmethod
    def round(cls, x: torch.Tensor) -> torch.Tensor:
        """Round scaled numbers to the nearest whole ones."""
        return x.round().clamp(-cls.largest, cls.largest).to(cls.encoding)

    @classmethod
    def error_bound(cls, x: torch.Tensor) -> torch.Tensor:
        """Half a step for every number: (..., H), the largest of each vector / 254."""
        return (x.abs().amax(-1, keepdim=True) / (2 * cls.largest)).expand_as(x)


class Float8(Scaled):
    """Keys and values in fp8 e4m3 (arXiv:2209.05433): off by 1/16 of a number, near 0 by the largest / 448 / 1024."""

    encoding, largest = torch.float8_e4m3fn, 448.0

    @classmethod
    def round(cls, x: torch.Tensor) -> torch.Tensor:
        """Round scaled numbers to the nearest of fp8."""
        return x.clamp(-cls.largest, cls.largest).to(cls.encoding)

    @classmethod
    def error_bound(cls, x: torch.Tensor) -> torch.Tensor:
        """Half of the spacing: three bits after the first make 2⁻⁴ of a number, or 2⁻¹⁰ scales below 2⁻⁶ of them."""
        scale = x.abs().amax(-1, keepdim=True) / cls.largest
        return torch.maximum(x.abs() / 16, scale / 1024)


def attention_error_bound(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kind: type[Scaled]) -> torch.Tensor:
    """Most by which attention over encoded keys and values can differ: q (..., T, H), k and v (..., S, H) -> (..., T).

    A score is off by δ ≤ ‖q‖₁ · (largest error of a key) / √H. So each weight changes by a factor from e^-2δ to e^2δ,
    and the result by at most (e^2δ - 1) · (largest |v|) plus the largest error of a value.
    """
    key_error, value_error = (kind.error_bound(x).flatten(-2).amax(-1)[..., None] for x in (k, v))  # (..., 1)
    score_error = q.abs().sum(-1) * key_error / math.sqrt(q.shape[-1])  # (..., T)
    return torch.expm1(2 * score_error) * v.abs().flatten(-2).amax(-1)[..., None] + value_error
