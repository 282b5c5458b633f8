"""What speculation gains: tokens per step and speed-up, from the acceptance rate (arXiv:2211.17192, §3).

The formulas assume that every draft token is accepted with the same probability, independently of the others. Real
outputs have easy and hard parts, so that with the mean of measured acceptance rates the formulas are an estimate.
"""

from __future__ import annotations

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_at_least_one, require_non_negative


def acceptance_rate(wanted: torch.Tensor, proposed: torch.Tensor) -> torch.Tensor:
    """Probability that a token drafted from `proposed` is accepted: sum of the minimum, (..., V) twice -> (...).

    It is 1 minus the total variation distance of the two (arXiv:2211.17192, corollary 3.6).
    """
    return torch.minimum(wanted, proposed).sum(-1)


def acceptance_among(wanted: torch.Tensor, proposed: torch.Tensor, candidates: int) -> torch.Tensor:
    """Probability that one of several tokens drawn independently from `proposed` is accepted: (..., V) twice -> (...).

    After a rejection, the next candidate is compared with the residual of `wanted` (arXiv:2305.09781, §4.3).
    """
    require_at_least_one(candidates=candidates)
    rejected = torch.ones(wanted.shape[:-1], dtype=wanted.dtype)
    for _ in range(candidates):
        rejected = rejected * (1 - acceptance_rate(wanted, proposed))
        residual = (wanted - proposed).clamp(min=0)
        total = residual.sum(-1, keepdim=True)
        wanted = torch.where(total > 0, residual / total.clamp(min=torch.finfo(total.dtype).tiny), wanted)
    return 1 - rejected


def expected_tokens(acceptance: float, num_speculative_tokens: int) -> float:
    """Mean number of tokens per step, the one after the drafts included: (1 - αᵏ⁺¹) / (1 - α), eq. 1.

    `acceptance` α is from 0 to 1, `num_speculative_tokens` k from 0; InputError otherwise.
    """
    if not 0 <= acceptance <= 1:
        raise InputError("acceptance of a draft", got=acceptance, expected="a probability, 0 to 1")
    require_non_negative(num_speculative_tokens=num_speculative_tokens)
    return float(sum(acceptance**i for i in range(num_speculative_tokens + 1)))


def speedup(acceptance: float, num_speculative_tokens: int, cost: float) -> float:
    """Speed-up over one token per step: tokens per step / (k · cost + 1), theorem 3.8.

    `cost` is the time of drafting one token in steps of the model, 0 for a look-up. A step over k + 1 tokens is assumed
    to take as long as one over a single token, as in small, memory-bound batches.
    """
    require_non_negative(cost=cost)
    return expected_tokens(acceptance, num_speculative_tokens) / (num_speculative_tokens * cost + 1)


def flops_ratio(acceptance: float, num_speculative_tokens: int, cost: float = 0.0) -> float:
    """FLOPs per token relative to one token per step: (k · cost + k + 1) / tokens per step, theorem 3.11.

    `cost` is the FLOPs of drafting one token over those of the model for one token, 0 for a look-up. Work on rejected
    drafts is lost, so the ratio is at least 1: speculation buys time with idle FLOPs.
    """
    require_non_negative(cost=cost)
    k = num_speculative_tokens
    return (k * cost + k + 1) / expected_tokens(acceptance, k)


def best_num_speculative_tokens(acceptance: float, cost: float, limit: int = 64) -> int:
    """Number of draft tokens per step, 0 to `limit`, with the largest `speedup`; the smallest of equals."""
    return max(range(limit + 1), key=lambda k: speedup(acceptance, k, cost))
