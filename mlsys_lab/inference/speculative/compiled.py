"""A drafter compiled for the CPU: a small LLaMA decodes token by token without torch, whose overhead is its cost.

A draft model of 0.1 M parameters multiplies for ten microseconds per token; as modules of torch it takes most of a
millisecond. Letters: L layers, D d_model, N query heads, K KV heads, H head_dim, F hidden size, V vocabulary,
C context.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from mlsys_lab.efficiency.quantization import QuantizedLinear
from mlsys_lab.flops import parameters
from mlsys_lab.inference.speculative.drafters import Drafter, ModelDrafter
from mlsys_lab.models import Transformer
from mlsys_lab.models.positions import rotary_angles

MAX_BYTES = 16e6
"""Largest model that is compiled: its weights stay in the CPU's cache, so that prompts can be computed by tokens."""
REQUIRED = {"norm": "rms", "activation": "swiglu", "position": "rotary"}
FORBIDDEN = (
    *("qkv_bias", "out_bias", "mlp_bias", "head_bias", "qk_norm", "embedding_norm", "post_norms"),
    *("parallel_blocks", "scaled_embedding", "experts", "latent"),
)
LAYERS = (*(f"attention.{name}" for name in ("query", "key", "value", "out")), "mlp.gate", "mlp.up", "mlp.down")


def make_drafter(model: Transformer) -> Drafter:
    """A drafter of a model: compiled if the model is supported, else on torch."""
    return CompiledDrafter(model) if CompiledDrafter.supports(model) else ModelDrafter(model)


class Weights(NamedTuple):
    """Arrays of a LLaMA, those of its layers stacked; `angles` are the cosines and sines (2, C, H/2)."""

    embedding: Any  # (V, D)
    attention_norm: Any  # (L, D)
    query: Any  # (L, N·H, D)
    key: Any  # (L, K·H, D)
    value: Any  # (L, K·H, D)
    out: Any  # (L, D, N·H)
    mlp_norm: Any  # (L, D)
    gate: Any  # (L, F, D)
    up: Any  # (L, F, D)
    down: Any  # (L, D, F)
    norm: Any  # (D,)
    head: Any  # (V, D)
    angles: Any  # (2, C, H/2)


class CompiledDrafter(ModelDrafter):
    """Drafts of a small LLaMA, decoded by compiled code; it caches the sequence that it drafted for last."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.vocab_size, c = model, model.config.vocab_size, model.config
        self._computed: list[int] = []
        self._weights = _read_weights(model)
        self._kv = np.zeros((2, c.n_layers, c.context, c.n_kv_heads, c.head_dim), np.float32)

    @staticmethod
    def supports(model: Transformer) -> bool:
        """Whether Numba is installed and the model is a LLaMA on the CPU of at most `MAX_BYTES` in fp32.

        Its weights may be quantized, its activations not.
        """
        c, window = model.config, model.window
        is_llama = all(getattr(c, name) == value for name, value in REQUIRED.items())
        is_llama &= not any(getattr(c, name) for name in FORBIDDEN) and c.partial_rotary_factor == 1 and window is None
        is_llama = is_llama and all(_has_weight(block.get_submodule(name)) for block in model.blocks for name in LAYERS)
        num_bytes = 4 * parameters(c).total
        return is_llama and num_bytes <= MAX_BYTES and model.embedding.weight.is_cpu and find_spec("numba") is not None

    def _extend(self, common: int, token_ids: Sequence[int]) -> torch.Tensor:
        from mlsys_lab.inference.speculative.compiled_kernels import decode

        return torch.from_numpy(
            decode(np.array(token_ids), common, self._weights, self._kv, self.model.config.norm_eps)
        )


def _has_weight(layer: nn.Module) -> bool:
    """Whether the outputs of a linear layer are those of one matrix."""
    return isinstance(layer, nn.Linear) or (isinstance(layer, QuantizedLinear) and layer.activations is None)


def _weight(layer: nn.Module) -> torch.Tensor:
    """Weight of a layer or norm, dequantized."""
    return layer.weight() if isinstance(layer, QuantizedLinear) else layer.get_parameter("weight")


def _read_weights(model: Transformer) -> Weights:
    def stack(name: str) -> Any:
        return np.stack([_weight(block.get_submodule(name)).detach().float().numpy() for block in model.blocks])

    c, embedding = model.config, model.embedding.weight.detach().float()
    positions = torch.arange(c.context)
    return Weights(
        embedding=embedding.numpy(),
        attention_norm=stack("attention_norm"),
        mlp_norm=stack("mlp_norm"),
        **{name.rpartition(".")[2]: stack(name) for name in LAYERS},
        norm=model.get_parameter("norm.weight").detach().float().numpy(),
        head=embedding.numpy() if c.tied else model.get_parameter("head.weight").detach().float().numpy(),
        angles=rotary_angles(positions, c.head_dim, c.rope_theta, embedding, c.rope_scaling).numpy(),
    )
