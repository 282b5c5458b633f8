"""Token positions in attention: rotary embedding, ALiBi, and the causal mask.

Dimension letters: T tokens or queries, S keys, N heads, H head_dim, R rotary_dim, ... any leading axes.
"""

from __future__ import annotations

import math

import torch

from mlsys_lab.configs import RotaryScaling


def rotary_angles(
    positions: torch.Tensor, H: int, theta: float, like: torch.Tensor, scaling: RotaryScaling | None = None
) -> torch.Tensor:
    """Cosines and sines of the rotary angles of positions: (..., T) -> (2, ..., T, H/2), in the dtype of `like`.

    RoFormer (arXiv:2104.09864), §3.2.2, equation 15: pair i rotates by theta^(-2i/H) per position, or by
    `scale_frequencies` of that. Computed in fp32 at least, since bf16 cannot distinguish distant positions.
    """
    fine = torch.promote_types(like.dtype, torch.float32)
    turns = theta ** (-torch.arange(0, H, 2, device=like.device, dtype=fine) / H)  # (H/2,)
    if scaling is not None:
        turns = scale_frequencies(turns, scaling)
    angles = positions.to(fine)[..., None] * turns  # (..., T, H/2)
    return torch.stack((angles.cos(), angles.sin())).to(like.dtype)  # (2, ..., T, H/2)


def scale_frequencies(turns: torch.Tensor, scaling: RotaryScaling) -> torch.Tensor:
    """Scale rotary frequencies, in radians per position: (H/2,) -> (H/2,).

    "linear": Chen et al. 2023 (arXiv:2306.15595), §2.3, positions divided by the factor. "llama3": `apply_scaling` of
    Meta's llama-models (models/llama3/model.py), which transformers has as `_compute_llama3_parameters`: the fraction
    of a frequency that is kept depends on its number of rotations within the original context.
    """
    if scaling.kind == "linear":
        return turns / scaling.factor
    rounds = scaling.original_context / (2 * math.pi) * turns
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((rounds - low) / (high - low)).clamp(0, 1)
    return turns * (kept + (1 - kept) / scaling.factor)


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Apply rotary embedding to the pairs (i, i + R/2), R ≤ H: (..., T, H), (2, ..., T, R/2) -> (..., T, H).

    Dimensions from R on stay as they are. The pairs are those of Hugging Face checkpoints; LLaMA's own files pair
    neighbours, (2i, 2i + 1).
    """
    cos, sin = angles
    R = 2 * cos.shape[-1]
    if x.shape[-1] > R:
        return torch.cat((rotate(x[..., :R], angles), x[..., R:]), dim=-1)
    first, second = x.chunk(2, dim=-1)  # (..., T, H/2) each
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def alibi_slopes(N: int, like: torch.Tensor) -> torch.Tensor:
    """ALiBi's slope of each head, (N,), on the device of `like` and in fp32 at least.

    Slopes are 2^(-8/n), 2^(-16/n), ... for n heads; if N is no power of two, n is the next lower one and the rest are
    every other slope of 2n heads (arXiv:2108.12409, §3 and its code).
    """
    n = 2 ** math.floor(math.log2(N))
    powers = [8 * (i + 1) / n for i in range(n)] + [4 * (2 * i + 1) / n for i in range(N - n)]
    fine = torch.promote_types(like.dtype, torch.float32)
    return 2.0 ** -torch.tensor(powers, device=like.device, dtype=fine)


def score_bias(
    queries: torch.Tensor,
    keys: torch.Tensor,
    like: torch.Tensor,
    *,
    slopes: torch.Tensor | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """Mask and bias of attention scores for query and key positions: (..., T) and (..., S) -> (..., N or 1, T, S).

    -inf where the key comes after the query, or `window` positions or more before it: a query sees itself and the
    `window` - 1 before. Elsewhere 0, or with ALiBi's `slopes` (N,) minus slope times distance. In the dtype of `like`.
    """
    fine = torch.promote_types(like.dtype, torch.float32)
    ahead = keys.to(fine)[..., None, None, :] - queries.to(fine)[..., None, :, None]  # (..., 1, T, S)
    bias = torch.zeros_like(ahead) if slopes is None else slopes[:, None, None] * ahead
    hidden = ahead > 0 if window is None else (ahead > 0) | (ahead <= -window)
    return bias.masked_fill(hidden, -math.inf).to(like.dtype)
