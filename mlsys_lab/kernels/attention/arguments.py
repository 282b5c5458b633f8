"""Checks of attention's arguments."""

from __future__ import annotations

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.arguments import check_rank
from mlsys_lab.validation import require_grouped_heads


def check_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise InputError unless shapes are (B, N, S, D), (B, K, T, D), (B, K, T, D) with N a multiple of K."""
    check_rank(4, q=q, k=k, v=v)
    if k.shape != v.shape:
        raise InputError("k and v have two shapes", got=f"{tuple(k.shape)} and {tuple(v.shape)}")
    (B, N, _, D), (kv_batch, K, _, kv_width) = q.shape, k.shape
    if (kv_batch, kv_width) != (B, D):
        shapes = f"{tuple(q.shape)} and {tuple(k.shape)}"
        raise InputError("q and k do not fit", got=shapes, expected="the same batch and width of heads")
    if not D:
        raise InputError("width of heads", got=D, expected="1 or more")
    require_grouped_heads(N, K)
