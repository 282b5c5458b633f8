"""Mean cross-entropy of logits (N, V) against targets (N,): the mean of log Σ exp(x) − x[target] over the rows."""

from __future__ import annotations

import torch

IGNORED = -100
"""Default target of a row that does not count, as in torch."""


def reference(logits: torch.Tensor, targets: torch.Tensor, *, ignore_index: int = IGNORED) -> torch.Tensor:
    """Mean cross-entropy in torch, one operation after another; it keeps N·V numbers for the backward pass."""
    kept = targets != ignore_index
    log_p = torch.log_softmax(logits.float(), -1)
    losses = -log_p.gather(1, targets.where(kept, 0)[:, None])[:, 0]
    return losses.where(kept, 0).sum() / kept.sum()


def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, *, ignore_index: int = IGNORED, step: str = "recomputed"
) -> torch.Tensor:
    """Mean cross-entropy over rows whose target is not `ignore_index`: a float32 scalar, differentiable.

    `targets` is int64; `step` is one of Triton's `STEPS`. "in_place" overwrites the logits, which nothing else
    may need (their producer's backward pass included), and can be differentiated once. The mean over no row is NaN, as
    in torch; so is the loss of a target that is no column. Raises InputError for logits that are not (rows, classes)
    with a target for each row, for other dtypes, two devices and an unknown step.
    """
    from mlsys_lab.kernels.cross_entropy import triton_steps

    return triton_steps.cross_entropy(logits, targets, ignore_index=ignore_index, step=step)
