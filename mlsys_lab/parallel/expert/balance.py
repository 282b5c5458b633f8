"""A loss that keeps experts evenly busy, over all ranks' tokens."""

from __future__ import annotations

import torch

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import ring


def load_balancing_loss(logits: torch.Tensor, experts: torch.Tensor, group: Rank) -> torch.Tensor:
    """E·Σ fᵢ·Pᵢ: router logits (n, E) of this rank's tokens, the experts (n, A) that they chose -> a number.

    fᵢ is expert i's share of all ranks' choices, Pᵢ the mean of its probabilities over this rank's tokens (Switch
    Transformers, arXiv:2101.03961, §2.2). Averaged over ranks of equally many tokens it is the loss of one process;
    with each rank's own fᵢ it would be another, and ranks with opposite choices would seem unbalanced. It is 1 where
    all experts are equally busy.
    """
    count = logits.shape[1]
    chosen = torch.bincount(experts.reshape(-1), minlength=count).to(logits.dtype)
    everywhere = ring(group, chosen, "choices of experts")
    return count * (everywhere / everywhere.sum() * logits.softmax(1).mean(0)).sum()
