"""Cross-entropy in Triton, step by step, and the operators that launch the kernels."""

from __future__ import annotations

from typing import Any

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.arguments import check_contiguous, check_rank, check_shape, check_step
from mlsys_lab.kernels.cross_entropy.triton_kernels import gradient_kernel, in_place_kernel, loss_kernel
from mlsys_lab.kernels.row_blocks import DTYPES, power_of_two, rows_and_width
from mlsys_lab.kernels.triton_launch import launch

STEPS = {
    "recomputed": "logits read once forward and once backward, softmax computed anew; one number a row is kept",
    "in_place": "loss and gradient in one kernel, the gradient in the logits' memory: no second (N, V) matrix",
}

WIDEST_BLOCK, WARPS = 4096, 8
"""Logits of the largest block of the vocabulary, and its warps: 16 logits a thread."""


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor, *, ignore_index: int, step: str) -> torch.Tensor:
    """Mean cross-entropy of logits (rows, classes) over rows whose target (rows,) is not `ignore_index`: a scalar.

    Differentiable, by one of `STEPS`. Raises InputError for tensors that do not fit each other and an unknown step.
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
        loss: torch.Tensor = _MeanInPlace.apply(logits, targets, ignore_index)  # type: ignore[no-untyped-call]
        return loss
    losses: torch.Tensor = _operator(logits, targets, ignore_index)[0]
    return losses.sum() / (targets != ignore_index).sum()


def _block(vocabulary: int) -> int:
    return min(WIDEST_BLOCK, power_of_two(vocabulary))


@torch.library.custom_op("mlsys_lab::cross_entropy", mutates_args=())
def _operator(logits: torch.Tensor, targets: torch.Tensor, ignore_index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses of all rows and, for the backward pass, ℓ of each row."""
    losses, log_sums = _fake(logits, targets, ignore_index)
    N, V = logits.shape
    launch(
        loss_kernel,
        (N,),
        logits.device,
        *(logits, targets, losses, log_sums, V, ignore_index),
        BLOCK=_block(V),
        num_warps=WARPS,
        outputs=["losses_ptr", "log_sums_ptr"],
    )
    return losses, log_sums


@_operator.register_fake
def _fake(logits: torch.Tensor, targets: torch.Tensor, ignore_index: int) -> tuple[torch.Tensor, torch.Tensor]:
    def row() -> torch.Tensor:
        return logits.new_empty(logits.shape[0], dtype=torch.float32)

    return row(), row()


@torch.library.custom_op("mlsys_lab::cross_entropy_backward", mutates_args=())
def _backward_operator(
    d_losses: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor, log_sums: torch.Tensor, ignore_index: int
) -> torch.Tensor:
    d_logits = torch.empty_like(logits)
    (N, V), block = logits.shape, _block(logits.shape[1])
    launch(
        gradient_kernel,
        (N, -(-V // block)),
        logits.device,
        *(logits, targets, log_sums, d_losses, d_logits, V, ignore_index),
        BLOCK=block,
        num_warps=WARPS,
        outputs=["d_logits_ptr"],
    )
    return d_logits


@_backward_operator.register_fake
def _backward_fake(
    d_losses: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor, log_sums: torch.Tensor, ignore_index: int
) -> torch.Tensor:
    return torch.empty_like(logits)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, targets, ctx.ignore_index = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(logits, targets, output[1])


def _backward(ctx: Any, d_losses: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    logits, targets, log_sums = ctx.saved_tensors
    d_logits: torch.Tensor = _backward_operator(d_losses.contiguous(), logits, targets, log_sums, ctx.ignore_index)
    return d_logits, None, None


_operator.register_autograd(_backward, setup_context=_setup_context)


@torch.library.custom_op("mlsys_lab::cross_entropy_in_place", mutates_args={"logits"})
def _in_place_operator(
    logits: torch.Tensor, targets: torch.Tensor, factor: torch.Tensor, ignore_index: int
) -> torch.Tensor:
    """Losses of all rows; writes `factor` (one float32) times their gradients over the logits."""
    N, V = logits.shape
    losses = logits.new_empty(N, dtype=torch.float32)
    launch(
        in_place_kernel,
        (N,),
        logits.device,
        *(logits, targets, losses, factor, V, ignore_index),
        BLOCK=_block(V),
        num_warps=WARPS,
        outputs=["losses_ptr"],
    )
    return losses


@_in_place_operator.register_fake
def _in_place_fake(
    logits: torch.Tensor, targets: torch.Tensor, factor: torch.Tensor, ignore_index: int
) -> torch.Tensor:
    return logits.new_empty(logits.shape[0], dtype=torch.float32)


class _MeanInPlace(torch.autograd.Function):
    """Autograd function around the operator that overwrites the logits with the gradient before it is asked for."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, ignore_index: int) -> torch.Tensor:
        factor = 1 / (targets != ignore_index).sum(dtype=torch.float32)
        gradient = logits.detach()
        losses: torch.Tensor = _in_place_operator(gradient, targets, factor, ignore_index)
        ctx.save_for_backward(gradient)
        return losses.sum() * factor

    @staticmethod
    def backward(ctx: Any, d_loss: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * d_loss, None, None
