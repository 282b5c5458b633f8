"""A decoder transformer: every block a norm, attention, a norm and an MLP, each added to what goes through.

Dimension letters: B batch, T tokens, D d_model, N query heads, K key/value heads, H head_dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.errors import InputError
from mlsys_lab.flops import TransformerConfig
from mlsys_lab.models.experts import MLP, MixtureOfExperts
from mlsys_lab.models.positions import alibi_bias, rotary_angles, rotate

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Type of causal attention with grouped heads: q (B, N, T, H), k and v (B, K, T, H), bias -> (B, N, T, H).

Query head n attends with key/value head n

(N/K); scores are scaled by 1/√H. A bias (N, T, T), where it is not None, is added to the scores and holds the causal
mask as -inf.
"""


def fused_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Causal attention of the type `Attention`, by torch's own kernels (`scaled_dot_product_attention`)."""
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None, enable_gqa=grouped)


class SelfAttention(nn.Module):
    """Self-attention with its projections, around a function `attention`: (B, T, D) -> (B, T, D)."""

    def __init__(self, config: TransformerConfig, attention: Attention) -> None:
        super().__init__()
        c, self.attention, self.head_dim = config, attention, config.head_dim
        self.query = nn.Linear(c.d_model, c.n_heads * c.head_dim, bias=c.qkv_bias)
        self.key = nn.Linear(c.d_model, c.n_kv_heads * c.head_dim, bias=c.qkv_bias)
        self.value = nn.Linear(c.d_model, c.n_kv_heads * c.head_dim, bias=c.qkv_bias)
        self.out = nn.Linear(c.n_heads * c.head_dim, c.d_model, bias=c.out_bias)
        self.query_norm = nn.RMSNorm(c.head_dim, c.norm_eps) if c.qk_norm else nn.Identity()
        self.key_norm = nn.RMSNorm(c.head_dim, c.norm_eps) if c.qk_norm else nn.Identity()

    def forward(self, x: torch.Tensor, angles: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        """Attend: x (B, T, D), rotary angles (2, T, H/2) or None, bias (N, T, T) or None -> (B, T, D)."""
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, N or K, T, H)
            for project in (self.query, self.key, self.value)
        )
        q, k = self.query_norm(q), self.key_norm(k)
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        heads = self.attention(q, k, v, bias)  # (B, N, T, H)
        return self.out(heads.transpose(1, 2).flatten(2))  # (B, T, D)


class Block(nn.Module):
    """Pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)); both from one norm where blocks are parallel.

    With post-norms each result is normed once more before it is added.
    """

    def __init__(self, config: TransformerConfig, layer: int, attention: Attention) -> None:
        super().__init__()
        experts = config.experts
        self.attention_norm = norm(config)
        self.attention = SelfAttention(config, attention)
        self.mlp_norm = None if config.parallel_blocks else norm(config)
        self.attention_post_norm = norm(config) if config.post_norms else nn.Identity()
        self.mlp_post_norm = norm(config) if config.post_norms else nn.Identity()
        routed = experts is not None and layer >= experts.dense_layers
        self.mlp = MixtureOfExperts(config, experts) if experts and routed else MLP(config, config.d_ff)

    def forward(self, x: torch.Tensor, angles: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        """Add attention's and the MLP's results to x: (B, T, D) -> (B, T, D); angles and bias as in `SelfAttention`."""
        h = self.attention_norm(x)
        if self.mlp_norm is None:
            return x + self.attention_post_norm(self.attention(h, angles, bias)) + self.mlp_post_norm(self.mlp(h))
        x = x + self.attention_post_norm(self.attention(h, angles, bias))
        return x + self.mlp_post_norm(self.mlp(self.mlp_norm(x)))


class Transformer(nn.Module):
    """Decoder transformer of the GPT-2 and LLaMA families: token ids (B, T) -> logits of the next token (B, T, V).

    `attention` is what each layer calls with its queries, keys and values. Raises InputError for latent attention,
    attention sinks and a router's bias, whose arithmetic
    is in `mlsys_lab.flops` but which are not built here. Weights begin as GPT-2's: normal, deviation
    0.02, divided by √(2L) where a block adds to what goes through (Radford et al. 2019, §2.3); biases 0.
    """

    def __init__(self, config: TransformerConfig, attention: Attention = fused_attention) -> None:
        super().__init__()
        if config.latent is not None:
            raise InputError("latent attention is not built here", got=config.name, expected="grouped or multi-head")
        if config.attention_sinks or config.router_bias:
            raise InputError("sinks and a router's bias are not built here", got=config.name, expected="neither")
        self.config = config
        V, D = config.vocab_size, config.d_model
        self.embedding = nn.Embedding(V, D)
        self.positions = nn.Embedding(config.context, D) if config.position == "learned" else None
        self.embedding_norm = norm(config) if config.embedding_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(config, layer, attention) for layer in range(config.n_layers))
        self.norm = norm(config)
        self.head = None if config.tied else nn.Linear(D, V, bias=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all weights again from the initial distribution, in place."""
        residual = (2 * self.config.n_layers) ** -0.5
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                adds = name.endswith((".out", ".down"))
                module.weight.normal_(std=0.02 * (residual if adds else 1))
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each next token: ids (B, T) -> (B, T, V). InputError for other shapes, dtypes and too long a T."""
        c = self.config
        if tokens.ndim != 2 or tokens.shape[1] > c.context or tokens.dtype not in (torch.int32, torch.int64):
            raise InputError(
                "tokens of another shape",
                got=f"{tuple(tokens.shape)} of {tokens.dtype}",
                expected=f"integers (B, T), T up to {c.context}",
            )
        T, weight = tokens.shape[1], self.embedding.weight
        try:
            x = self.embedding(tokens)  # (B, T, D)
        except IndexError:
            got = f"{int(tokens.min())} to {int(tokens.max())}"
            raise InputError("token outside the vocabulary", got=got, expected=f"0 to {c.vocab_size - 1}") from None
        if self.positions is not None:
            x = x + self.positions.weight[:T]
        x = self.embedding_norm(x)
        rotary = c.position == "rotary"
        angles = rotary_angles(T, c.head_dim, c.rope_theta, weight, c.rope_scaling) if rotary else None
        bias = alibi_bias(T, c.n_heads, weight) if c.position == "alibi" else None
        for block in self.blocks:
            x = block(x, angles, bias)
        return F.linear(self.norm(x), weight if self.head is None else self.head.weight)  # (B, T, V)


def norm(config: TransformerConfig) -> nn.Module:
    """A new norm over the last axis, of the kind and with the bias that the configuration names."""
    if config.norm == "rms":
        return nn.RMSNorm(config.d_model, config.norm_eps)
    return nn.LayerNorm(config.d_model, config.norm_eps, bias=config.norm_bias)
