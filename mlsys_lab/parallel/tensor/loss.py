"""The loss of logits whose vocabulary is divided over the ranks, which never come together (arXiv:1909.08053, §3)."""

from __future__ import annotations

from typing import Any

import torch

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.scattered import all_gather_ring
from mlsys_lab.parallel.tensor.layers import local_token_ids

LOSS = "loss"
"""The purpose with which the ledger counts messages of the loss."""


def vocab_parallel_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, group: Rank) -> torch.Tensor:
    """Mean cross-entropy: this rank's logits (T, V/p) and target ids (T,) of the whole vocabulary -> a number.

    Each rank sends three numbers a token, not V/p: the largest of its logits, the sum of exponentials relative to it,
    and the target's logit, where it has that. Backward, nothing is sent.
    """
    loss: torch.Tensor = _DividedCrossEntropy.apply(logits, targets, group)  # type: ignore[no-untyped-call]
    return loss


class _DividedCrossEntropy(torch.autograd.Function):
    """Sums of exponentials are put together over the ranks; a rank's gradient needs its own logits only."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, group: Rank) -> torch.Tensor:
        here, inside = local_token_ids(targets, logits.shape[1], group)
        largest = logits.max(1).values
        total = (logits - largest[:, None]).exp().sum(1)
        target = logits.gather(1, here[:, None])[:, 0] * inside
        ranks = torch.stack(all_gather_ring(group, torch.stack([largest, total, target]), LOSS))  # (p, 3, T)
        highest = ranks[:, 0].max(0).values
        log_total = highest + ((ranks[:, 0] - highest).exp() * ranks[:, 1]).sum(0).log()
        ctx.save_for_backward(logits, log_total, here, inside)
        return (log_total - ranks[:, 2].sum(0)).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None, None]:
        logits, log_total, here, inside = ctx.saved_tensors
        probabilities = (logits - log_total[:, None]).exp()
        probabilities.scatter_add_(1, here[:, None], -inside.to(logits.dtype)[:, None])
        return probabilities * gradients[0] / len(logits), None, None
