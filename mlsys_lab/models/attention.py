"""Self-attention: projections around an attention function, and the types of such functions.

Dimension letters: B batch, T tokens, D d_model, N query heads, K key/value heads, H head_dim, R rotary_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.models.positions import rotate

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Causal grouped-query attention: q (B, N, T, H), k and v (B, K, T, H), bias -> (B, N, T, H).

Query head n attends with key/value head n // (N/K); scores are scaled by 1/√H. A bias (N or 1, T, T), or one per batch
element, is added to the scores if not None, and contains the causal mask as -inf.
"""

CachedAttention = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Attention with a KV cache, which knows its layer: layer, q, k, v -> (B, N, T, H).

Layers count from 0; q is (B, N, T, H), k and v are (B, K, T, H) of the new tokens alone, with rotary embedding applied.
Masking and bias are up to the function; scores are scaled by 1/√head_dim of the configuration, because latent
attention's queries and keys are wider than its heads (`mlsys_lab.models.latent`).
"""


Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Project = Callable[[torch.Tensor, Sequence[nn.Linear]], list[torch.Tensor]]
"""Multiplies one input (..., I) by several matrices: a result (..., O) per linear layer."""


def project_each(x: torch.Tensor, linears: Sequence[nn.Linear]) -> list[torch.Tensor]:
    """Call each linear layer with x in turn."""
    return [linear(x) for linear in linears]


def fused_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Attention of type `Attention` by torch's `scaled_dot_product_attention`."""
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None, enable_gqa=grouped)


class SelfAttention(nn.Module):
    """Self-attention with its projections, around a function `attention`: (B, T, D) -> (B, T, D).

    `project` computes queries, keys and values.
    """

    def __init__(self, config: TransformerConfig, attention: Attention) -> None:
        super().__init__()
        c, self.attention, self.head_dim = config, attention, config.head_dim
        self.project: Project = project_each
        self.query = nn.Linear(c.d_model, c.n_heads * c.head_dim, bias=c.qkv_bias)
        self.key = nn.Linear(c.d_model, c.n_kv_heads * c.head_dim, bias=c.qkv_bias)
        self.value = nn.Linear(c.d_model, c.n_kv_heads * c.head_dim, bias=c.qkv_bias)
        self.out = nn.Linear(c.n_heads * c.head_dim, c.d_model, bias=c.out_bias)
        self.norm_all_heads = c.qk_norm_all_heads
        N, K = (c.n_heads, c.n_kv_heads) if c.qk_norm_all_heads else (1, 1)
        self.query_norm = nn.RMSNorm(N * c.head_dim, c.norm_eps) if c.qk_norm else nn.Identity()
        self.key_norm = nn.RMSNorm(K * c.head_dim, c.norm_eps) if c.qk_norm else nn.Identity()

    def forward(
        self,
        x: torch.Tensor,
        angles: torch.Tensor | None,
        bias: torch.Tensor | None,
        attend: Attend | None = None,
    ) -> torch.Tensor:
        """x (B, T, D), rotary angles (2, ..., T, R/2) or None, bias or None -> (B, T, D).

        `attend`, if given, replaces `attention` and the bias.
        """
        q, k, v = self.project(x, (self.query, self.key, self.value))
        if self.norm_all_heads:
            q, k = self.query_norm(q), self.key_norm(k)  # (B, T, N·H), (B, T, K·H)
        q, k, v = (
            one.view(*one.shape[:2], one.shape[2] // self.head_dim, self.head_dim).transpose(1, 2) for one in (q, k, v)
        )
        if not self.norm_all_heads:
            q, k = self.query_norm(q), self.key_norm(k)
        if angles is not None:
            turned = rotate(torch.cat((q, k), dim=1), angles)  # both at once: half the operations
            q, k = turned[:, : q.shape[1]], turned[:, q.shape[1] :]
        heads = self.attention(q, k, v, bias) if attend is None else attend(q, k, v)  # (B, N, T, H)
        return self.out(heads.transpose(1, 2).flatten(2))  # (B, T, D)
