"""Softmax along the last dimension: y = exp(x − max x) / Σ exp(x − max x)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.arguments import check_contiguous, check_step
from mlsys_lab.kernels.row_blocks import DTYPES, row_block, rows_and_width
from mlsys_lab.kernels.triton_launch import launch

STEPS = {
    "one_pass": "whole rows in registers: one read, one write",
    "online": "rows of any length, block by block, maximum and sum in one pass: two reads, one write",
}

MAX_WIDTH = 32768
"""Widest row that one program holds in registers: 32 elements in each of 1,024 threads."""

MAX_BACKWARD_WIDTH = 16384
"""Widest row of the one-pass backward kernel, which holds rows of both y and dy in registers."""

BLOCK, NUM_WARPS = 4096, 8
"""Elements of a block, and warps, of a program that loops over a row."""


def reference(x: Tensor) -> Tensor:
    """Softmax along the last dimension in torch, one operation after another: five passes over memory."""
    wide = x.float()
    e = torch.exp(wide - wide.amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def softmax(x: Tensor, *, step: str | None = None) -> Tensor:
    """Softmax of contiguous (…, D) along D, differentiable; computed in float32, returned in x's dtype.

    `step` is one of `STEPS`; by default "one_pass" if a row fits a program's registers, else "online". A row with NaN
    or +inf, or of −inf alone, becomes all NaN, as in torch. Raises InputError for a tensor that is not contiguous, has
    another dtype or is empty along D, for rows too wide for the step, and for an unknown step.
    """
    check_contiguous(DTYPES, x=x)
    _, D = rows_and_width(x)
    step = step or ("one_pass" if D <= MAX_WIDTH else "online")
    check_step(step, STEPS)
    if step == "one_pass" and D > MAX_WIDTH:
        raise InputError("rows too wide for one pass", got=D, expected=f"at most {MAX_WIDTH}", help="step='online'")
    y: Tensor = _forward(x, step)
    return y


@torch.library.custom_op("mlsys_lab::softmax", mutates_args=())
def _forward(x: Tensor, step: str) -> Tensor:
    from mlsys_lab.kernels.softmax import triton_kernels as kernels

    y, (N, D) = torch.empty_like(x), rows_and_width(x)
    if step == "online":
        loop = {"BLOCK": BLOCK, "num_warps": NUM_WARPS}
        launch(kernels.online_kernel, (N,), x.device, x, y, D, **loop, outputs=["y_ptr"])
    else:
        _launch_one_pass(kernels.one_pass_kernel, x, y, per_thread=32, outputs=["y_ptr"])
    return y


@torch.library.custom_op("mlsys_lab::softmax_backward", mutates_args=())
def _backward(dy: Tensor, y: Tensor, step: str) -> Tensor:
    from mlsys_lab.kernels.softmax import triton_kernels as kernels

    dx, (N, D) = torch.empty_like(y), rows_and_width(y)
    if step == "online" or D > MAX_BACKWARD_WIDTH:
        loop = {"BLOCK": BLOCK, "num_warps": NUM_WARPS}
        launch(kernels.online_backward_kernel, (N,), y.device, dy, y, dx, D, **loop, outputs=["dx_ptr"])
    else:
        _launch_one_pass(kernels.one_pass_backward_kernel, dy, y, dx, per_thread=16, outputs=["dx_ptr"])
    return dx


def _launch_one_pass(kernel: Any, *tensors: Tensor, per_thread: int, outputs: list[str]) -> None:
    """Launch a kernel that holds full rows in registers."""
    N, D = rows_and_width(tensors[0])
    tile = row_block(D, elements=1024, per_thread=per_thread)
    constants = {"ROWS": tile.rows, "BLOCK": tile.block, "num_warps": tile.num_warps}
    launch(kernel, (tile.num_programs(N),), tensors[0].device, *tensors, N, D, **constants, outputs=outputs)


@_forward.register_fake
def _forward_fake(x: Tensor, step: str) -> Tensor:
    return torch.empty_like(x)


@_backward.register_fake
def _backward_fake(dy: Tensor, y: Tensor, step: str) -> Tensor:
    return torch.empty_like(y)


def _setup_context(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
    ctx.step = inputs[1]
    ctx.save_for_backward(output)


def _vjp(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
    (y,) = ctx.saved_tensors
    return _backward(dy.contiguous(), y, ctx.step), None


_forward.register_autograd(_vjp, setup_context=_setup_context)
