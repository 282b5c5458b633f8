"""Which rows go to which expert: choices put in order of experts, and those dropped that find no room.

Letters: n tokens of this rank, E experts, A experts that a token uses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mlsys_lab.errors import InputError


@dataclass(frozen=True)
class Routing:
    """Choices of experts, all those of expert 0 first: R rows of at most n·A.

    `rows` (R,) are the tokens, `choices` (R,) says which of its choices it was for the token, `counts` (E,) how many
    rows each expert gets, and `dropped` how many choices found no room.
    """

    rows: torch.Tensor
    choices: torch.Tensor
    counts: torch.Tensor
    dropped: int


def route(experts: torch.Tensor, count: int, capacity_factor: float | None = None) -> Routing:
    """Put choices in order: experts (n, A) that each token chose, best first, of `count` experts.

    capacity_factor: an expert takes at most ⌈factor·n·A/E⌉ rows from this rank, first choices before second ones and
    earlier tokens before later ones; the rest is dropped (GShard, arXiv:2006.16668, §2.2). None for no limit. Raises
    InputError for a factor that is not positive.
    """
    if capacity_factor is not None and not capacity_factor > 0:
        raise InputError("a capacity factor must be positive", got=capacity_factor, expected="or None for no limit")
    tokens, active = experts.shape
    wanted = experts.T.reshape(-1)  # all first choices, then all second ones
    order = torch.argsort(wanted, stable=True)
    counts = torch.bincount(wanted, minlength=count)
    if capacity_factor is not None:
        capacity = math.ceil(capacity_factor * tokens * active / count)
        before = (counts.cumsum(0) - counts)[wanted[order]]  # rows of experts that come first
        place = torch.arange(len(wanted), device=wanted.device) - before
        order, counts = order[place < capacity], counts.clamp(max=capacity)
    return Routing(order % tokens, order // tokens, counts, len(wanted) - len(order))
