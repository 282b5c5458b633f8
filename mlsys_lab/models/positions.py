"""Two ways to tell attention where tokens stand without learning it: rotary angles, and ALiBi's slopes.

Dimension letters: T tokens, N heads, H head_dim, ... any leading axes.
"""

from __future__ import annotations

import math

import torch

from mlsys_lab.flops import RotaryScaling


def rotary_angles(
    T: int, H: int, theta: float, like: torch.Tensor, scaling: RotaryScaling | None = None
) -> torch.Tensor:
    """Cosines and sines of the rotary angles of positions 0..T-1: (2, T, H/2), with the device and dtype of `like`.

    RoFormer (arXiv:2104.09864), §3.2.2, equation 15: pair i turns by theta^(-2i/H) a position, or less by
    `stretch_angles` where there is a scaling. Worked out in fp32 at least, since bf16 cannot tell far positions apart.
    """
    fine = torch.promote_types(like.dtype, torch.float32)
    turns = theta ** (-torch.arange(0, H, 2, device=like.device, dtype=fine) / H)  # (H/2,)
    if scaling is not None:
        turns = stretch_angles(turns, scaling)
    angles = torch.arange(T, device=like.device, dtype=fine)[:, None] * turns  # (T, H/2)
    return torch.stack((angles.cos(), angles.sin())).to(like.dtype)  # (2, T, H/2)


def stretch_angles(turns: torch.Tensor, scaling: RotaryScaling) -> torch.Tensor:
    """Stretch rotary angles by `scaling`: radians a position of each pair, (H/2,) -> (H/2,).

    "linear": Chen et al. 2023 (arXiv:2306.15595), §2.3, positions divided by the factor. "llama3": `apply_scaling` of
    Meta's llama-models (models/llama3/model.py), which transformers has as `_compute_llama3_parameters`. By how often a
    pair turns right round within the original context, a share of its speed is kept and the rest divided.
    """
    if scaling.kind == "linear":
        return turns / scaling.factor
    rounds = scaling.original_context / (2 * math.pi) * turns
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((rounds - low) / (high - low)).clamp(0, 1)
    return turns * (kept + (1 - kept) / scaling.factor)


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (i, i + H/2) of each head by its position's angles: (..., T, H) and (2, T, H/2) -> (..., T, H).

    The pairs are those of Hugging Face checkpoints; LLaMA's own files pair neighbours, (2i, 2i + 1).
    """
    cos, sin = angles
    first, second = x.chunk(2, dim=-1)  # (..., T, H/2) each
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def alibi_bias(T: int, N: int, like: torch.Tensor) -> torch.Tensor:
    """ALiBi's bias on the scores, (N, T, T): minus slope times distance for the past, -inf for the future.

    Slopes are 2^(-8/n), 2^(-16/n), ... for n heads; where N is no power of two, n is the next lower one and the rest
    are every other slope of 2n heads (arXiv:2108.12409, §3 and its code).
    """
    n = 2 ** math.floor(math.log2(N))
    powers = [8 * (i + 1) / n for i in range(n)] + [4 * (2 * i + 1) / n for i in range(N - n)]
    fine = torch.promote_types(like.dtype, torch.float32)
    slopes = 2.0 ** -torch.tensor(powers, device=like.device, dtype=fine)  # (N,)
    places = torch.arange(T, device=like.device, dtype=fine)
    ahead = places - places[:, None]  # (T, T): of a key before a query
    bias = slopes[:, None, None] * ahead  # (N, T, T)
    return bias.masked_fill(ahead > 0, -math.inf).to(like.dtype)
