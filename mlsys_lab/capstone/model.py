"""A LLaMA-like decoder on the learner's engine, with the weights, names and logits of `models.Transformer`.

Dimension letters: B batch, T tokens, D d_model, N query heads, K key/value heads, G = N/K, H head_dim, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from mlsys_lab.capstone.operations import Tensor, rms_norm, rotary, silu, softmax
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models.positions import rotary_angles
from mlsys_lab.models.transformer import Transformer

HEAD, EMBEDDING = "head.weight", "embedding.weight"


class GPT:
    """Decoder on an engine: token ids (B, T) -> logits (B, T, V).

    `engine` is a stack's layer with `Tensor`, `record` and `cross_entropy`. `weights` are torch tensors by the names of
    `Transformer`, whose memory the model shares. `parameters` are its leaves by those names. Raises InputError for a
    configuration other than LLaMA's (rotary, RMS norm, SwiGLU, no biases), and for weights of other names or shapes.
    """

    def __init__(self, engine: Any, config: TransformerConfig, weights: Mapping[str, torch.Tensor]) -> None:
        check_config(config)
        check_weights(config, weights)
        self.engine, self.config = engine, config
        self.parameters: dict[str, Tensor] = {
            name: engine.Tensor(weight.detach(), requires_grad=True) for name, weight in weights.items()
        }

    def __call__(self, tokens: torch.Tensor) -> Tensor:
        """Logits of the next token at each position: ids (B, T) -> (B, T, V)."""
        B, T = tokens.shape
        if self.config.context < T:
            raise InputError("tokens exceed the context", got=T, expected=f"up to {self.config.context}")
        embedding = self.parameters[EMBEDDING]
        angles = rotary_angles(torch.arange(T), self.config.head_dim, self.config.rope_theta, embedding.data)
        mask = torch.full((T, T), -math.inf, dtype=embedding.dtype).triu(1)
        x = embedding[tokens.reshape(-1)]  # (B·T, D)
        for layer in range(self.config.n_layers):
            block = f"blocks.{layer}."
            x = x + self._attention(block, self._norm(f"{block}attention_norm", x), (B, T), angles, mask)
            x = x + self._mlp(block, self._norm(f"{block}mlp_norm", x))
        logits = self._linear("embedding" if self.config.tied else "head", self._norm("norm", x))
        return logits.reshape(B, T, self.config.vocab_size)

    def loss(self, windows: torch.Tensor) -> Tensor:
        """Mean next-token cross-entropy of windows (B, T + 1), in nats per token."""
        logits = self(windows[:, :-1])
        flat = logits.reshape(-1, self.config.vocab_size)
        loss: Tensor = self.engine.cross_entropy(flat, windows[:, 1:].reshape(-1))
        return loss

    def _attention(
        self, block: str, x: Tensor, shape: tuple[int, int], angles: torch.Tensor, mask: torch.Tensor
    ) -> Tensor:
        """Causal grouped-query attention: (B·T, D) -> (B·T, D)."""
        (B, T), c = shape, self.config
        K, G, H = c.n_kv_heads, c.n_heads // c.n_kv_heads, c.head_dim

        def heads(name: str, groups: int) -> Tensor:
            projected = self._linear(f"{block}attention.{name}", x)
            return projected.reshape(B, T, K, groups, H).permute(0, 2, 3, 1, 4)  # (B, K, groups, T, H)

        q = rotary(self.engine, heads("query", G), angles)
        k = rotary(self.engine, heads("key", 1), angles)
        scores = (q @ k.T) * H**-0.5 + mask  # (B, K, G, T, T)
        attended = (softmax(scores) @ heads("value", 1)).permute(0, 3, 1, 2, 4)  # (B, T, K, G, H)
        return self._linear(f"{block}attention.out", attended.reshape(B * T, c.n_heads * H))

    def _mlp(self, block: str, x: Tensor) -> Tensor:
        """SwiGLU: down(silu(gate(x)) · up(x)), (B·T, D) -> (B·T, D)."""
        hidden = silu(self._linear(f"{block}mlp.gate", x)) * self._linear(f"{block}mlp.up", x)
        return self._linear(f"{block}mlp.down", hidden)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        """Product with a weight (O, I): (B·T, I) -> (B·T, O).

        Tokens are rows of one matrix: on (B, T, I) the engine's VJP would make B gradients of the weight and add them.
        """
        return x @ self.parameters[f"{name}.weight"].T

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return rms_norm(x, self.parameters[f"{name}.weight"], self.config.norm_eps)


def check_config(config: TransformerConfig) -> None:
    """Raise InputError unless a configuration is LLaMA's: rotary, RMS norm, SwiGLU, nothing else."""
    sizes = ("n_layers", "d_model", "n_heads", "d_ff", "vocab_size", "context", "n_kv_heads", "head_dim")
    kept = (*sizes, "name", "tied", "rope_theta", "norm_eps")
    wanted = vars(TransformerConfig(**{name: getattr(config, name) for name in kept}))
    if differing := [name for name, value in wanted.items() if getattr(config, name) != value]:
        got, expected = (", ".join(f"{name}={one[name]}" for name in differing) for one in (vars(config), wanted))
        raise InputError("the capstone's model is LLaMA-like", got=got, expected=expected)


def check_weights(config: TransformerConfig, weights: Mapping[str, torch.Tensor]) -> None:
    """Raise InputError unless weights have the names and shapes of `Transformer(config)`."""
    with torch.device("meta"):
        expected = {name: tuple(weight.shape) for name, weight in Transformer(config).named_parameters()}
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    for name in [*expected, *found]:
        if found.get(name) != expected.get(name):
            got, wanted = (str(one.get(name, "no such weight")) for one in (found, expected))
            raise InputError(f"weights of another shape: {name}", got=got, expected=wanted)
