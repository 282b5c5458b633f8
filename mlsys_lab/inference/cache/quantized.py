"""KV caches in 8 bits, with a scale for each head's vector.

Dimension letters: L layers, K key/value heads, H width of a head's vector, ... any number of slots.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch

from mlsys_lab.inference.engine.model_runner import KVCache, Slots, read_slots, write_slots
from mlsys_lab.models import Transformer


class ScaledKVCache(KVCache):
    """Keys and values in 8 bits: each head's vector is divided by a scale that maps its largest number to `largest`.

    Scales are fp32, one per token and head: 4 bytes for every H bytes.
    """

    largest: ClassVar[float]

    def __init__(self, model: Transformer, num_slots: int) -> None:
        super().__init__(model, num_slots)
        self.model_dtype = model.embedding.weight.dtype
        self.scales = torch.zeros(self.kv.shape[:-1], dtype=torch.float32, device=self.kv.device)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The 8-bit numbers and their scales."""
        return [self.kv, self.scales]

    def store(self, layer: int, slots: Slots, k: torch.Tensor, v: torch.Tensor) -> None:
        """Quantize keys and values (..., K, H) of one layer and store them in slots (...)."""
        for kv, scales, x in zip(self.kv[:, layer], self.scales[:, layer], (k, v), strict=False):
            for tensor, values in zip((kv, scales), self.quantize(x), strict=True):
                write_slots(tensor, slots, values)

    def _load_one(self, kv_index: int, layer: int, slots: Slots) -> torch.Tensor:
        scales = read_slots(self.scales[kv_index, layer], slots).to(self.model_dtype)
        return super()._load_one(kv_index, layer, slots).to(self.model_dtype) * scales[..., None]

    @classmethod
    def quantize(cls, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers in 8 bits and the scale of each vector: (..., H) -> (..., H) and (...,)."""
        scale = x.abs().amax(-1).float() / cls.largest
        scale = scale.masked_fill(scale == 0, 1)  # a vector of zeros
        return cls.round(x / scale[..., None].to(x.dtype)), scale

    @classmethod
    def round(cls, x: torch.Tensor) -> torch.Tensor:
        """Round scaled numbers to the nearest representable ones."""
        raise NotImplementedError

    @classmethod
    def error_bound(cls, x: torch.Tensor) -> torch.Tensor:
        """Largest quantization error of each number of x, (..., H), before rounding in the model's dtype."""
        raise NotImplementedError


class Int8KVCache(ScaledKVCache):
    """Keys and values as integers from -127 to 127, with an error up to half a scale: the largest number / 254."""

    dtype, largest = torch.int8, 127.0

    @classmethod
    def round(cls, x: torch.Tensor) -> torch.Tensor:
        """Round scaled numbers to the nearest integers."""
        return x.round().clamp(-cls.largest, cls.largest).to(cls.dtype)

    @classmethod
    def error_bound(cls, x: torch.Tensor) -> torch.Tensor:
        """Half a scale for every number: (..., H), the largest of each vector / 254."""
        return (x.abs().amax(-1, keepdim=True) / (2 * cls.largest)).expand_as(x)


class Float8KVCache(ScaledKVCache):
    """Keys and values in fp8 e4m3 (arXiv:2209.05433), with an error up to 1/16 of a number, near 0 the scale / 1024."""

    dtype, largest = torch.float8_e4m3fn, 448.0

    @classmethod
    def round(cls, x: torch.Tensor) -> torch.Tensor:
        """Round scaled numbers to the nearest fp8 numbers."""
        return x.clamp(-cls.largest, cls.largest).to(cls.dtype)

    @classmethod
    def error_bound(cls, x: torch.Tensor) -> torch.Tensor:
        """Half of the spacing: three mantissa bits make 2⁻⁴ of a number, or 2⁻¹⁰ scales below 2⁻⁶ of them."""
        scale = x.abs().amax(-1, keepdim=True) / cls.largest
        return torch.maximum(x.abs() / 16, scale / 1024)


def attention_error_bound(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_cache_class: type[ScaledKVCache]
) -> torch.Tensor:
    """Largest error of attention over quantized keys and values: q (..., T, H), k and v (..., S, H) -> (..., T).

    The error of a score is δ ≤ ‖q‖₁ · (largest error of a key) / √H. So each weight changes by a factor from e^-2δ to
    e^2δ, and the result by at most (e^2δ - 1) · (largest |v|) plus the largest error of a value.
    """
    key_error, value_error = (kv_cache_class.error_bound(x).flatten(-2).amax(-1)[..., None] for x in (k, v))  # (..., 1)
    score_error = q.abs().sum(-1) * key_error / math.sqrt(q.shape[-1])  # (..., T)
    return torch.expm1(2 * score_error) * v.abs().flatten(-2).amax(-1)[..., None] + value_error
