"""What speculation gains: tokens of a step, and time, from how often a draft is accepted (arXiv:2211.17192, §3).

Formulas take every draft to be accepted with one probability, independently of the others. Real texts have easy and
hard stretches, so that with the mean of measured acceptances they are an estimate.
"""

from __future__ import annotations

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_at_least_one, require_non_negative


def acceptance_rate(wanted: torch.Tensor, proposed: torch.Tensor) -> torch.Tensor:
    """Probability that a token drafted from `proposed` is accepted: the sum of the lesser, (..., V) twice -> (...).

    One less the total variation between the two (arXiv:2211.17192, corollary 3.6).
    """
    return torch.minimum(wanted, proposed).sum(-1)


def acceptance_among(wanted: torch.Tensor, proposed: torch.Tensor, candidates: int) -> torch.Tensor:
    """Probability that one of several tokens drawn independently from `proposed` is accepted: (..., V) twice -> (...).

    After each that is rejected, the next is held against what is wanted beyond (arXiv:2305.09781, §4.3).
    """
    require_at_least_one(candidates=candidates)
    rejected = torch.ones(wanted.shape[:-1], dtype=wanted.dtype)
    for _ in range(candidates):
        rejected = rejected * (1 - acceptance_rate(wanted, proposed))
        beyond = (wanted - proposed).clamp(min=0)
        total = beyond.sum(-1, keepdim=True)
        wanted = torch.where(total > 0, beyond / total.clamp(min=torch.finfo(total.dtype).tiny), wanted)
    return 1 - rejected


def expected_tokens(acceptance: float, drafts: int) -> float:
    """Tokens that a step of the model adds on average, the one after the drafts included: (1 - αᵏ⁺¹) / (1 - α), eq. 1.

    `acceptance` α is from 0 to 1, `drafts` k from 0; InputError otherwise.
    """
    if not 0 <= acceptance <= 1:
        raise InputError("acceptance of a draft", got=acceptance, expected="a probability, 0 to 1")
    require_non_negative(drafts=drafts)
    return float(sum(acceptance**i for i in range(drafts + 1)))


def speedup(acceptance: float, drafts: int, cost: float) -> float:
    """How many times faster than one token a step: tokens of a step / (drafts · cost + 1), theorem 3.8.

    `cost` is the time of drafting one token in steps of the model, 0 for a look-up. A step over drafts + 1 tokens is
    taken to last as long as one over a single token, as it does where memory binds: in small batches.
    """
    require_non_negative(cost=cost)
    return expected_tokens(acceptance, drafts) / (drafts * cost + 1)


def operations_ratio(acceptance: float, drafts: int, cost: float = 0.0) -> float:
    """How many times the operations of one token a step: (drafts · cost + drafts + 1) / tokens of a step, theorem 3.11.

    `cost` is the operations of drafting one token over those of the model for one token, 0 for a look-up. Rejected
    drafts are work for nothing, so the ratio is at least 1: speculation buys time with FLOPs that were idle.
    """
    require_non_negative(cost=cost)
    return (drafts * cost + drafts + 1) / expected_tokens(acceptance, drafts)


def best_drafts(acceptance: float, cost: float, most: int = 64) -> int:
    """Number of drafts a step, 0 to `most`, with the greatest `speedup`; the fewest of those that are as good."""
    return max(range(most + 1), key=lambda drafts: speedup(acceptance, drafts, cost))
