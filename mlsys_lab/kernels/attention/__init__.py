"""Attention: softmax(scale · Q·Kᵀ)·V, with a causal mask and grouped heads.

reference   torch, one operation after another
naive       Triton, the matrix of scores in memory
online      Triton, one kernel with a running softmax
flash       Triton, without the tiles that the mask hides
"""

from __future__ import annotations

import math

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.arguments import check_tensors
from mlsys_lab.kernels.attention.arguments import check_heads

STEPS = {
    "reference": "torch: scores, mask, softmax and weighted values, each a pass over memory",
    "naive": "Triton: three kernels, four passes over the matrix of scores",
    "online": "Triton: one kernel with a running softmax, the scores never stored",
    "flash": "Triton: the same without the tiles that a causal mask hides",
}


REFERENCE_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """Attention written out in torch, in the inputs' dtype: (B, N, S, D), (B, K, T, D), (B, K, T, D) -> (B, N, S, D).

    `causal`: query i sees the keys up to i + T - S; one that sees none gives zeros.
    """
    group, (S, T) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)  # (B, N, S, T)
    if not causal:
        return scores.softmax(-1) @ v
    query, key = torch.arange(S, device=q.device)[:, None], torch.arange(T, device=q.device)
    hidden = key > query + T - S
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return weights.masked_fill(hidden, 0.0) @ v  # a row that is all hidden has NaN for weights


def attend_in_model(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, *, step: str = "flash"
) -> torch.Tensor:
    """Causal attention of the type that `mlsys_lab.models.Transformer` calls; InputError for a bias on the scores."""
    if bias is not None:
        raise InputError("a bias on the scores", got=f"shape {tuple(bias.shape)}", expected="None, causal without one")
    return attention(q, k, v, causal=True, step=step)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    step: str = "flash",
) -> torch.Tensor:
    """Attention by one of `STEPS`, differentiable: (B, N, S, D), (B, K, T, D), (B, K, T, D) -> (B, N, S, D).

    Query head n attends with key/value head n // (N/K). `causal`: query i sees the keys up to i + T - S. `scale` is
    1/√D by default. Heads up to 256 wide, in float16, bfloat16 or float32; InputError for others, for shapes that do
    not fit each other and for an unknown step.
    """
    if step == "reference":
        check_tensors(REFERENCE_DTYPES, q=q, k=k, v=v)
        check_heads(q, k, v)
        return reference(q, k, v, causal=causal, scale=scale)
    from mlsys_lab.kernels.attention import triton_steps

    return triton_steps.attention(q, k, v, causal=causal, scale=scale, step=step)
