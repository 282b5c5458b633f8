"""Mean cross-entropy of logits (N, V) against targets (N,): the mean of log Σ exp(x) − x[target] over the rows.

reference    torch, one operation after another; keeps softmax's N·V numbers for the backward pass
recomputed   logits read once forward, once backward; N numbers kept
in_place     gradient computed beside the loss, where the logits were: no second (N, V) matrix at any time
"""

from __future__ import annotations

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.arguments import alike, known_step, of_rank, of_shape
from mlsys_lab.kernels.row_blocks import DTYPES, rows_and_width

STEPS = {
    "reference": "torch: logarithm of softmax, then the targets' entries",
    "recomputed": "Triton: log Σ exp forward; softmax again from it backward",
    "in_place": "Triton: loss and gradient in one kernel, the gradient in the logits' memory",
}


def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, *, ignore_index: int = -100, step: str = "recomputed"
) -> torch.Tensor:
    """The mean loss over rows whose target is not `ignore_index`, a float32 scalar, differentiable, by one of `STEPS`.

    `targets` is int64. "in_place" overwrites the logits, which nothing else may need (their producer's backward pass
    included), and can be differentiated once. Of rows that are all ignored the mean is NaN, as in torch; so is the loss
    of a target that is no column. Raises InputError.
    """
    known_step(step, STEPS)
    alike(DTYPES, logits=logits)
    alike((torch.int64,), targets=targets)
    of_rank(2, logits=logits)
    rows_and_width(logits, "logits")
    of_shape((logits.shape[0],), targets=targets)
    if targets.device != logits.device:
        raise InputError("logits and targets are on two devices", got=f"{logits.device} and {targets.device}")
    kept = targets != ignore_index
    if step == "reference":
        log_p = torch.log_softmax(logits.float(), -1)
        losses = -log_p.gather(1, targets.where(kept, 0)[:, None])[:, 0]
        return losses.where(kept, 0).sum() / kept.sum()
    from mlsys_lab.kernels.cross_entropy import triton_steps

    if step == "in_place":
        return triton_steps.mean_in_place(logits, targets, ignore_index)
    return triton_steps.cross_entropy(logits, targets, ignore_index).sum() / kept.sum()
