"""What training in 8 bits saves: FLOPs at the higher peak, and bytes of the inputs that the backward pass needs.

Weights, gradients and optimizer states are not fewer bytes: the optimizer keeps weights in fp32, and 8-bit codes of
them are made at each step (`mlsys_lab.flops.memory` has the bytes a parameter, in DeepSeek-V3's recipe too).
Letters: D d_model, N query heads, H head_dim, F d_ff.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.efficiency.fp8.recipes import Recipe
from mlsys_lab.errors import InputError
from mlsys_lab.flops import compute
from mlsys_lab.flops.number_formats import scaled_bits
from mlsys_lab.validation import require_at_least_one

SCALE_BITS = 32


@dataclass(frozen=True)
class Savings:
    """Costs of a training step: FLOPs of products in 8 bits and of the remaining ones, bytes of saved inputs.

    `input_bytes` are what all linear layers of the blocks save of their inputs, scales included; `bf16_input_bytes` the
    same in bf16.
    """

    low_flops: float
    high_flops: float
    input_bytes: float
    bf16_input_bytes: float

    @property
    def low_fraction(self) -> float:
        """Fraction of the FLOPs whose operands have 8 bits."""
        return self.low_flops / (self.low_flops + self.high_flops)

    def speedup_bound(self, peak_ratio: float = 2.0) -> float:
        """Largest speed-up if all products run at their peak, that of 8 bits being `peak_ratio` that of 16 (Amdahl)."""
        require_at_least_one(peak_ratio=peak_ratio)
        return 1 / (1 - self.low_fraction * (1 - 1 / peak_ratio))


def savings(config: TransformerConfig, recipe: Recipe, tokens: int, batch: int = 1) -> Savings:
    """What a recipe saves in a training step on `batch` sequences of `tokens` tokens.

    Layers that share an input (queries, keys and values; gate and up) save it once, as fused ones do. InputError for
    experts and latent attention, whose inputs are not counted.

    >>> from mlsys_lab.configs.presets import preset
    >>> from mlsys_lab.efficiency.fp8.recipes import RECIPES
    >>> saved = savings(preset("llama3-70b"), RECIPES["block"], tokens=8192)
    >>> round(saved.low_fraction, 3), round(saved.speedup_bound(), 2), saved.input_bytes / saved.bf16_input_bytes
    (0.853, 1.74, 0.515625)
    """
    if config.experts or config.latent:
        raise InputError("inputs of experts and of latent attention are not counted", got=config.name)
    once = compute.forward(config, tokens, batch)
    low = once.query + once.key_value + once.output + once.mlp
    inputs = 2 * config.d_model + config.n_heads * config.head_dim + config.d_ff  # of a token in a layer
    elements = batch * tokens * config.n_layers * inputs
    scales = [(SCALE_BITS, recipe.block_size)] if recipe.scaling == "block" else []
    bits = scaled_bits(recipe.forward.bits, *scales)
    return Savings(3 * low, 3 * (once.total - low), elements * bits / 8, elements * 2)
