"""Mean cross-entropy of logits (N, V) against targets (N,): the mean of log Σ exp(x) − x[target] over the rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.arguments import check_contiguous, check_rank, check_shape, check_step
from mlsys_lab.kernels.row_blocks import DTYPES, next_power_of_2, rows_and_width
from mlsys_lab.kernels.triton_launch import launch

STEPS = {
    "recomputed": "logits read once forward and once backward, softmax recomputed; one number per row is saved",
    "in_place": "loss and gradient in one kernel, the gradient in the logits' memory: no second (N, V) matrix",
}

IGNORE_INDEX = -100
"""Default target of a row that does not count, as in torch."""

MAX_BLOCK, NUM_WARPS = 4096, 8
"""Logits of the largest block of the vocabulary, and its warps: 16 logits per thread."""


def reference(logits: Tensor, targets: Tensor, *, ignore_index: int = IGNORE_INDEX) -> Tensor:
    """Mean cross-entropy in torch, one operation after another; it saves N·V numbers for the backward pass."""
    kept = targets != ignore_index
    log_p = torch.log_softmax(logits.float(), -1)
    losses = -log_p.gather(1, targets.where(kept, 0)[:, None])[:, 0]
    return losses.where(kept, 0).sum() / kept.sum()


def cross_entropy(
    logits: Tensor, targets: Tensor, *, ignore_index: int = IGNORE_INDEX, step: str = "recomputed"
) -> Tensor:
    """Mean cross-entropy over rows whose target is not `ignore_index`: a float32 scalar, differentiable.

    `logits` is (N, V), `targets` (N,) in int64; `step` is one of `STEPS`. "in_place" overwrites the logits, so nothing
    else may need them (the backward pass of the operation that produced them included), and can be differentiated once.
    If every row is ignored the loss is NaN, as in torch; a target outside 0 to V − 1 gives NaN too. Raises InputError
    for shapes, dtypes or devices that do not match and an unknown step.
    """
    check_step(step, STEPS)
    check_contiguous(DTYPES, logits=logits)
    check_contiguous((torch.int64,), targets=targets)
    check_rank(2, logits=logits)
    rows_and_width(logits, "logits")
    check_shape((logits.shape[0],), targets=targets)
    if targets.device != logits.device:
        raise InputError("logits and targets are on two devices", got=f"{logits.device} and {targets.device}")
    if step == "in_place":
        loss: Tensor = _MeanInPlace.apply(logits, targets, ignore_index)  # type: ignore[no-untyped-call]
        return loss
    losses: Tensor = _forward(logits, targets, ignore_index)[0]
    return losses.sum() / (targets != ignore_index).sum()


def _block(vocab_size: int) -> int:
    return min(MAX_BLOCK, next_power_of_2(vocab_size))


@torch.library.custom_op("mlsys_lab::cross_entropy", mutates_args=())
def _forward(logits: Tensor, targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Losses of all rows and, for the backward pass, ℓ of each row."""
    from mlsys_lab.kernels.cross_entropy.triton_kernels import loss_kernel

    losses, log_sums = _forward_fake(logits, targets, ignore_index)
    (N, V), outputs = logits.shape, ["losses_ptr", "log_sums_ptr"]
    tensors, constants = (logits, targets, losses, log_sums), {"BLOCK": _block(V), "num_warps": NUM_WARPS}
    launch(loss_kernel, (N,), logits.device, *tensors, V, ignore_index, **constants, outputs=outputs)
    return losses, log_sums


@_forward.register_fake
def _forward_fake(logits: Tensor, targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    losses = logits.new_empty(logits.shape[0], dtype=torch.float32)
    return losses, torch.empty_like(losses)


@torch.library.custom_op("mlsys_lab::cross_entropy_backward", mutates_args=())
def _backward(d_losses: Tensor, logits: Tensor, targets: Tensor, log_sums: Tensor, ignore_index: int) -> Tensor:
    from mlsys_lab.kernels.cross_entropy.triton_kernels import gradient_kernel

    d_logits = torch.empty_like(logits)
    (N, V), block = logits.shape, _block(logits.shape[1])
    tensors, constants = (logits, targets, log_sums, d_losses, d_logits), {"BLOCK": block, "num_warps": NUM_WARPS}
    grid, outputs = (N, -(-V // block)), ["d_logits_ptr"]
    launch(gradient_kernel, grid, logits.device, *tensors, V, ignore_index, **constants, outputs=outputs)
    return d_logits


@_backward.register_fake
def _backward_fake(d_losses: Tensor, logits: Tensor, *_: object) -> Tensor:
    return torch.empty_like(logits)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, targets, ctx.ignore_index = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(logits, targets, output[1])


def _vjp(ctx: Any, d_losses: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
    return _backward(d_losses.contiguous(), *ctx.saved_tensors, ctx.ignore_index), None, None


_forward.register_autograd(_vjp, setup_context=_setup_context)


@torch.library.custom_op("mlsys_lab::cross_entropy_in_place", mutates_args={"logits"})
def _in_place(logits: Tensor, targets: Tensor, factor: Tensor, ignore_index: int) -> Tensor:
    """Losses of all rows; overwrites the logits with `factor` (one float32) times their gradients."""
    from mlsys_lab.kernels.cross_entropy.triton_kernels import in_place_kernel

    N, V = logits.shape
    losses = logits.new_empty(N, dtype=torch.float32)
    tensors, constants = (logits, targets, losses, factor), {"BLOCK": _block(V), "num_warps": NUM_WARPS}
    launch(in_place_kernel, (N,), logits.device, *tensors, V, ignore_index, **constants, outputs=["losses_ptr"])
    return losses


@_in_place.register_fake
def _in_place_fake(logits: Tensor, *_: object) -> Tensor:
    return logits.new_empty(logits.shape[0], dtype=torch.float32)


class _MeanInPlace(torch.autograd.Function):
    """The mean loss by `_in_place`: the forward pass already writes the gradient over the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
        factor = 1 / (targets != ignore_index).sum(dtype=torch.float32)
        gradient = logits.detach()
        losses: Tensor = _in_place(gradient, targets, factor, ignore_index)
        ctx.save_for_backward(gradient)
        return losses.sum() * factor

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * d_loss, None, None
