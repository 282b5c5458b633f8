"""A small GPT on our own tensors: enough of a transformer to train, to differentiate and to checkpoint.

Dimension letters: B batch, T tokens, C channels, H heads, D = C/H head dimension, V vocabulary.
Pre-norm blocks as in GPT-2 (Radford et al. 2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from mlsys_lab.autograd import fused, nn
from mlsys_lab.autograd.base import as_torch
from mlsys_lab.autograd.checkpointing import checkpoint_sequential
from mlsys_lab.autograd.functional import gelu, where
from mlsys_lab.autograd.tensor import Tensor
from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_integer


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT. `segments` is the number of checkpointed segments of its blocks; None recomputes nothing.

    `fused` computes layer norm and GELU by the kernels of `mlsys_lab.autograd.fused`.
    """

    vocabulary: int
    context: int
    layers: int
    heads: int
    channels: int
    dropout: float = 0.0
    segments: int | None = None
    fused: bool = False

    def __post_init__(self) -> None:
        for name in ("vocabulary", "context", "layers", "heads", "channels"):
            require_integer(f"GPTConfig.{name}", getattr(self, name))
        if self.channels % self.heads:
            raise InputError("channels must divide among heads", got=f"{self.channels} channels, {self.heads} heads")


class CausalSelfAttention(nn.Module):
    """Multi-head causal self-attention, softmax(q @ kᵀ / √D, past only) @ v in each head: (B, T, C) -> (B, T, C)."""

    def __init__(self, config: GPTConfig) -> None:
        c = config.channels
        self.heads = config.heads
        self.query, self.key, self.value, self.out = (nn.Linear(c, c) for _ in range(4))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over a batch of sequences, (B, T, C) -> (B, T, C): token t sees tokens 0..t of its own sequence."""
        B, T, C = x.shape

        def split(y: Tensor) -> Tensor:
            return y.reshape(B, T, self.heads, C // self.heads).permute(0, 2, 1, 3)  # (B, H, T, D)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = (q @ k.T) * (1 / math.sqrt(C // self.heads))  # (B, H, T, T)
        past = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        weights = self.dropout(where(past, scores, -math.inf).softmax())  # (B, H, T, T)
        heads = (weights @ v).permute(0, 2, 1, 3).reshape(B, T, C)
        return self.out(heads)


def layer_norm_class(config: GPTConfig) -> type[nn.LayerNorm]:
    """Layer norm of the blocks: fused or by its formula."""
    return fused.LayerNorm if config.fused else nn.LayerNorm


class Block(nn.Module):
    """Pre-norm transformer block: x + attention(norm(x)), then x + feed-forward(norm(x)): (B, T, C) -> (B, T, C)."""

    def __init__(self, config: GPTConfig) -> None:
        c, norm, activation = config.channels, layer_norm_class(config), fused.gelu if config.fused else gelu
        self.norm1, self.attention = norm(c), CausalSelfAttention(config)
        self.norm2 = norm(c)
        self.feed_forward = nn.Sequential(
            nn.Linear(c, 4 * c), activation, nn.Linear(4 * c, c), nn.Dropout(config.dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply attention, then the feed-forward network, each added to its input: (B, T, C) -> (B, T, C)."""
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class GPT(nn.Module):
    """GPT language model: token ids (B, T) -> logits of each next token (B, T, V)."""

    def __init__(self, config: GPTConfig) -> None:
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.channels)
        self.positions = nn.Embedding(config.context, config.channels)
        self.blocks = [Block(config) for _ in range(config.layers)]
        self.norm = layer_norm_class(config)(config.channels)
        self.head = nn.Linear(config.channels, config.vocabulary, bias=False)

    def forward(self, tokens: Any) -> Tensor:
        """Logits of the next token at each position: ids (B, T) -> (B, T, V). InputError if T exceeds the context."""
        ids = as_torch(tokens, device=self.head.weight.device)  # (B, T)
        if ids.ndim != 2 or ids.shape[1] > self.config.context:
            raise InputError(
                "tokens of another shape", got=tuple(ids.shape), expected=f"(B, T), T up to {self.config.context}"
            )
        positions = torch.arange(ids.shape[1], device=ids.device)  # (T,)
        x = self.tokens(ids) + self.positions(positions)  # (B, T, C)
        if self.config.segments is None:
            for block in self.blocks:
                x = block(x)
        else:
            x = checkpoint_sequential(self.blocks, x, self.config.segments)
        return self.head(self.norm(x))
