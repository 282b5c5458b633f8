"""Which tokens of a sequence each rank has: what decides how evenly causal attention's work is divided."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mlsys_lab.errors import InputError


def contiguous_positions(tokens: int, ranks: int) -> list[torch.Tensor]:
    """Positions (T/p,) of each rank, one stretch each: the last rank's tokens see almost all, the first one's few."""
    _require_multiple(tokens, ranks)
    return list(torch.arange(tokens).chunk(ranks))


def zigzag_positions(tokens: int, ranks: int) -> list[torch.Tensor]:
    """Positions (T/p,) of each rank: of 2p stretches the i-th from the front and the i-th from the back.

    All ranks then have equally many scores under a causal mask (Llama 3, arXiv:2407.21783, §3.3.2).
    """
    _require_multiple(tokens, 2 * ranks)
    stretches = torch.arange(tokens).chunk(2 * ranks)
    return [torch.cat([stretches[rank], stretches[2 * ranks - 1 - rank]]) for rank in range(ranks)]


def count_scores(positions: Sequence[torch.Tensor]) -> list[int]:
    """Query-key pairs that each rank works out under a causal mask, its queries having these positions."""
    return [int((own + 1).sum()) for own in positions]


def _require_multiple(tokens: int, parts: int) -> None:
    if tokens < 1 or tokens % parts:
        raise InputError("tokens cannot be divided evenly", got=f"{tokens} over {parts}")
