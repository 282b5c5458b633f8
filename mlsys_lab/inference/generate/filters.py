"""What changes logits before a token is drawn: a penalty for repetition, and three ways to leave out unlikely tokens.

Dimension letters: V vocabulary, ... any leading axes. Each returns new logits (..., V); a token left out has -inf, and
the likeliest one always stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch


def penalise_repetition(logits: torch.Tensor, seen: Iterable[int], penalty: float) -> torch.Tensor:
    """Divide positive logits of seen tokens by `penalty` and multiply negative ones: (V,) -> (V,).

    CTRL (Keskar et al. 2019, arXiv:1909.05858, §4.1), for negative logits as `transformers` has it. A token counts
    once, however often it was seen.
    """
    if penalty == 1:
        return logits
    known = torch.tensor(sorted(set(seen)), dtype=torch.int64, device=logits.device)
    chosen = logits[known]
    return logits.index_copy(0, known, torch.where(chosen < 0, chosen * penalty, chosen / penalty))


def keep_top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Leave out all but the k likeliest tokens and those as likely as the last of them (arXiv:1805.04833)."""
    least = logits.topk(k).values[..., -1:]
    return logits.masked_fill(logits < least, -math.inf)


def keep_top_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Leave out all but the nucleus: the fewest tokens with probability p together (arXiv:1904.09751, §3.1)."""
    likeliest = logits.sort(descending=True, stable=True)
    probabilities = likeliest.values.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # of all that are likelier
    outside = before >= p
    outside[..., 0] = False
    return logits.masked_fill(torch.zeros_like(outside).scatter(-1, likeliest.indices, outside), -math.inf)


def keep_min_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Leave out tokens less likely than p times the likeliest one (Nguyen et al. 2024, arXiv:2407.01082)."""
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(p), -math.inf)
