"""Softmax in Triton, step by step, and the operators that launch the kernels."""

from __future__ import annotations

from typing import Any

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.arguments import check_contiguous, check_step
from mlsys_lab.kernels.row_blocks import DTYPES, row_block, rows_and_width
from mlsys_lab.kernels.softmax.triton_kernels import (
    blocks_backward_kernel,
    one_pass_backward_kernel,
    one_pass_kernel,
    online_kernel,
)
from mlsys_lab.kernels.triton_launch import launch

STEPS = {
    "one_pass": "whole rows in registers: one read, one write",
    "online": "rows of any length, block by block, maximum and sum in one pass: two reads, one write",
}

WIDEST = 32768
"""Elements of a row that the registers of one program hold: 32 in each of 1,024 threads."""

WIDEST_BACKWARD = 16384
"""Elements of a row that one program's registers hold in the backward pass, where rows of y and dy have to fit."""

BLOCK, WARPS = 4096, 8
"""Elements of a block, and warps, of a program that goes through a row block by block."""


def softmax(x: torch.Tensor, *, step: str | None = None) -> torch.Tensor:
    """Softmax of a contiguous tensor (…, D) along D, differentiable, by one of `STEPS`.

    Without a step: "one_pass" where a row fits the registers of a program, else "online". Raises InputError for another
    tensor, rows too wide for the step, and an unknown step.
    """
    check_contiguous(DTYPES, x=x)
    _, width = rows_and_width(x)
    step = step or ("one_pass" if width <= WIDEST else "online")
    check_step(step, STEPS)
    if step == "one_pass" and width > WIDEST:
        raise InputError("rows too wide for one pass", got=width, expected=f"at most {WIDEST}", help="step='online'")
    y: torch.Tensor = _operator(x, step)
    return y


@torch.library.custom_op("mlsys_lab::softmax", mutates_args=())
def _operator(x: torch.Tensor, step: str) -> torch.Tensor:
    y = torch.empty_like(x)
    rows, width = rows_and_width(x)
    if step == "online":
        launch(online_kernel, (rows,), x.device, x, y, width, BLOCK=BLOCK, num_warps=WARPS, outputs=["y_ptr"])
        return y
    cut = row_block(width, elements=1024, per_thread=32)
    launch(
        one_pass_kernel,
        (cut.programs(rows),),
        x.device,
        x,
        y,
        rows,
        width,
        ROWS=cut.rows,
        BLOCK=cut.block,
        num_warps=cut.warps,
        outputs=["y_ptr"],
    )
    return y


@_operator.register_fake
def _fake(x: torch.Tensor, step: str) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("mlsys_lab::softmax_backward", mutates_args=())
def _backward_operator(dy: torch.Tensor, y: torch.Tensor, step: str) -> torch.Tensor:
    dx = torch.empty_like(y)
    rows, width = rows_and_width(y)
    if step == "online" or width > WIDEST_BACKWARD:
        blocks = {"BLOCK": BLOCK, "num_warps": WARPS}
        launch(blocks_backward_kernel, (rows,), y.device, dy, y, dx, width, **blocks, outputs=["dx_ptr"])
        return dx
    cut = row_block(width, elements=1024, per_thread=16)
    launch(
        one_pass_backward_kernel,
        (cut.programs(rows),),
        y.device,
        dy,
        y,
        dx,
        rows,
        width,
        ROWS=cut.rows,
        BLOCK=cut.block,
        num_warps=cut.warps,
        outputs=["dx_ptr"],
    )
    return dx


@_backward_operator.register_fake
def _backward_fake(dy: torch.Tensor, y: torch.Tensor, step: str) -> torch.Tensor:
    return torch.empty_like(y)


def _setup_context(ctx: Any, inputs: tuple[torch.Tensor, str], output: torch.Tensor) -> None:
    ctx.step = inputs[1]
    ctx.save_for_backward(output)


def _backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
    (y,) = ctx.saved_tensors
    return _backward_operator(dy.contiguous(), y, ctx.step), None


_operator.register_autograd(_backward, setup_context=_setup_context)
