"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, §2.1): keys and values from one small latent vector.

Dimension letters: B batch, T tokens, D d_model, N heads, R kv_rank, P rope_dim, M nope_dim, U v_dim; H = M + P.
"""

from __future__ import annotations

import torch
from torch import nn

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.models.attention import Attend, Attention
from mlsys_lab.models.positions import rotate


class LatentSelfAttention(nn.Module):
    """Latent self-attention around a function `attention`: (B, T, D) -> (B, T, D).

    Only a token's latent vector (R) and a rotary key (P) shared by all heads need to be cached. Without a cache they
    are up-projected to a key and a value per head. With one, the up-projections are absorbed into queries and outputs:
    every head attends directly to the cached vectors, as one key and one value head.
    """

    def __init__(self, config: TransformerConfig, attention: Attention) -> None:
        super().__init__()
        c, latent, self.attention = config, config.latent, attention
        assert latent is not None
        self.latent, N = latent, c.n_heads
        self.heads, self.head_dim = N, c.head_dim
        if latent.q_rank is None:
            self.query_down = self.query_norm = None
        else:
            self.query_down = nn.Linear(c.d_model, latent.q_rank, bias=False)
            self.query_norm = nn.RMSNorm(latent.q_rank, c.norm_eps)
        self.query = nn.Linear(latent.q_rank or c.d_model, N * c.head_dim, bias=False)
        self.latent_down = nn.Linear(c.d_model, latent.kv_rank + latent.rope_dim, bias=False)
        self.latent_norm = nn.RMSNorm(latent.kv_rank, c.norm_eps)
        self.latent_up = nn.Linear(latent.kv_rank, N * (latent.nope_dim + latent.v_dim), bias=False)
        self.out = nn.Linear(N * latent.v_dim, c.d_model, bias=c.out_bias)

    def forward(
        self,
        x: torch.Tensor,
        angles: torch.Tensor | None,
        bias: torch.Tensor | None,
        attend: Attend | None = None,
    ) -> torch.Tensor:
        """x (B, T, D), rotary angles (2, ..., T, P/2), bias or None -> (B, T, D).

        `attend`, if given, replaces `attention` and the bias; its queries and keys have R + P dimensions, and its
        values are the keys' first R.
        """
        latent = self.latent
        assert angles is not None
        q = x if self.query_down is None or self.query_norm is None else self.query_norm(self.query_down(x))
        q = self.query(q).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)  # (B, N, T, H)
        q_plain, q_turned = q.split((latent.nope_dim, latent.rope_dim), dim=-1)
        q_turned = rotate(q_turned, angles)  # (B, N, T, P)
        kept, key = self.latent_down(x)[:, None].split((latent.kv_rank, latent.rope_dim), dim=-1)  # (B, 1, T, R), P
        kept, key = self.latent_norm(kept), rotate(key, angles)
        if attend is None:
            unpacked = self.latent_up(kept[:, 0]).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, N, T, M + U)
            k, v = unpacked.split((latent.nope_dim, latent.v_dim), dim=-1)
            k = torch.cat((k, key.expand(-1, self.heads, -1, -1)), dim=-1)  # (B, N, T, H)
            heads = self.attention(torch.cat((q_plain, q_turned), dim=-1), k, v, bias)  # (B, N, T, U)
        else:
            up = self.latent_up.weight.view(self.heads, -1, latent.kv_rank)  # (N, M + U, R)
            to_key, to_value = up[:, : latent.nope_dim], up[:, latent.nope_dim :]
            wide = torch.cat((q_plain @ to_key, q_turned), dim=-1)  # (B, N, T, R + P)
            heads = attend(wide, torch.cat((kept, key), dim=-1), kept) @ to_value.mT  # (B, N, T, R) -> U
        return self.out(heads.transpose(1, 2).flatten(2))  # (B, T, D)
