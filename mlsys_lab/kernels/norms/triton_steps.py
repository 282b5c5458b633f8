"""Layer norm and RMS norm in Triton, step by step, and the operators that launch the kernels."""

from __future__ import annotations

from typing import Any

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.arguments import check_contiguous, check_shape, check_step
from mlsys_lab.kernels.norms.triton_kernels import (
    backward_kernel,
    forward_kernel,
    sum_rows_kernel,
    wide_backward_kernel,
)
from mlsys_lab.kernels.row_blocks import DTYPES, RowBlock, power_of_two, row_block, rows_and_width
from mlsys_lab.kernels.tiles import limits
from mlsys_lab.kernels.triton_launch import launch

STEPS = {
    "one_block": "a program a block of rows: weights are read and a share of their gradient written for every block",
    "persistent": "as many programs as run at once, each going through rows: weights and share stay with it",
}

WIDEST = 32768
"""Elements of a row that the registers of one program hold: 32 in each of 1,024 threads."""

KEPT = 8192
"""Widest weight that a program keeps in registers beside a row; wider ones come from the caches for every row."""

ROOMY = 8192
"""Widest row where x, dy and the shares of dw and db fit into the registers of one program together."""

ROOMY_SHARES = 16384
"""Widest row where a program's registers hold the shares of dw and db; beyond, db is summed apart, reading dy again.

Layer norm's backward pass then exchanges 4·N·D elements with memory, not 3·N·D. At 32,768 wide, dw and db together
are as many numbers as a multiprocessor has registers, 65,536; and a share of db kept in memory would be read and
written for every row, 8 bytes an element, where dy is 2 or 4.
"""

PART = 4096
"""Number of elements of a part of a row that is wider than `ROOMY`."""

RMS_THREADS, LAYER_THREADS, BACKWARD_THREADS = 1024, 512, 512
"""Threads of a multiprocessor that persistent programs occupy: all run at once, registers have room for no more."""


def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float, step: str) -> torch.Tensor:
    """Layer norm of (…, D) along D, or RMS norm where there is no bias, differentiable.

    `weight` and `bias` are (D,). Raises InputError for tensors that do not fit each other, rows wider than a program
    takes, and an unknown step.
    """
    check_step(step, STEPS)
    of_columns = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    check_contiguous(DTYPES, x=x, **of_columns)
    _, width = rows_and_width(x)
    check_shape((width,), **of_columns)
    if width > WIDEST:
        raise InputError("rows too wide for one program", got=width, expected=f"at most {WIDEST} elements")
    y: torch.Tensor = _operator(x, weight, bias, eps, step)[0]
    return y


def _programs_at_once(cut: RowBlock, threads: int) -> int:
    return max(1, threads // (32 * cut.warps))


def _programs(step: str, blocks: int, most: int) -> int:
    return min(blocks, most) if step == "persistent" else blocks


@torch.library.custom_op("mlsys_lab::norm", mutates_args=())
def _operator(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, step: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y and, for the backward pass, μ and r of each row, float32; without a bias, RMS norm, whose μ is empty."""
    y, mean, r = _fake(x, weight, bias, eps, step)
    N, D = rows_and_width(x)
    cut = row_block(D, elements=2048, per_thread=16)
    most = limits(x.device).multiprocessors * _programs_at_once(cut, RMS_THREADS if bias is None else LAYER_THREADS)
    programs = _programs(step, cut.programs(N), most)
    launch(
        forward_kernel,
        (programs,),
        x.device,
        *(x, weight, weight if bias is None else bias, y, mean, r, N, D, eps),
        CENTRED=bias is not None,
        KEEP=D <= KEPT,
        STAGES=2 if D <= KEPT else 1,
        ROWS=cut.rows,
        BLOCK=cut.block,
        num_warps=cut.warps,
        outputs=["y_ptr", "r_ptr"] if bias is None else ["y_ptr", "mean_ptr", "r_ptr"],
    )
    return y, mean, r


@_operator.register_fake
def _fake(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, step: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = x.shape[:-1]
    mean = x.new_empty(0 if bias is None else rows, dtype=torch.float32)
    return torch.empty_like(x), mean, x.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("mlsys_lab::norm_backward", mutates_args=())
def _backward_operator(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor,
    r: torch.Tensor,
    centred: bool,
    step: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients dx, dw and db (empty for RMS norm)."""
    dx, dw, db = _backward_fake(dy, x, weight, mean, r, centred, step)
    N, D = rows_and_width(x)
    wide, whole_shares = D > ROOMY, D <= ROOMY_SHARES
    cut = row_block(D, elements=4096, per_thread=16, least_warps=8)
    most = limits(x.device).multiprocessors * (1 if wide else _programs_at_once(cut, BACKWARD_THREADS))
    programs = _programs(step, cut.programs(N), most)
    shares = x.new_empty(2 if centred and whole_shares else 1, programs, D, dtype=torch.float32)
    constants: dict[str, Any] = {"ROWS": cut.rows, "BLOCK": cut.block, "num_warps": cut.warps}
    if wide:
        warps = 32 if x.itemsize == 4 else 16  # the widest loads, and no more registers than there are
        constants = {"BIAS": centred and whole_shares, "PARTS": -(-D // PART), "BLOCK": PART, "num_warps": warps}
    launch(
        wide_backward_kernel if wide else backward_kernel,
        (programs,),
        x.device,
        *(dy, x, weight, mean, r, dx, shares[0], shares[-1], N, D),
        CENTRED=centred,
        **constants,
        outputs=["dx_ptr", "dw_ptr", "db_ptr"],
    )
    _sum_rows(shares, dw, db)
    if centred and not whole_shares:
        _sum_rows(dy.view(1, N, D), db)
    return dx, dw, db


@_backward_operator.register_fake
def _backward_fake(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor,
    r: torch.Tensor,
    centred: bool,
    step: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(weight), weight.new_empty(weight.shape if centred else 0)


def _sum_rows(shares: torch.Tensor, *totals: torch.Tensor) -> None:
    """Write into each of `totals` the sum of the rows of its matrix in `shares`; the sum of no rows is 0."""
    matrices, P, D = shares.shape
    rows, block = 128, min(64, max(16, power_of_two(D // 128)))
    launch(
        sum_rows_kernel,
        (-(-D // block), matrices),
        shares.device,
        *(shares, totals[0], totals[-1], P, D),
        ROWS=rows,
        BLOCK=block,
        num_warps=max(4, rows * block // 1024),
        outputs=["dw_ptr"] if matrices == 1 else ["dw_ptr", "db_ptr"],
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, weight, bias, _, ctx.step = inputs
    _, mean, r = output
    ctx.centred = bias is not None
    ctx.mark_non_differentiable(mean, r)
    ctx.save_for_backward(x, weight, mean, r)


def _backward(ctx: Any, dy: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, weight, mean, r = ctx.saved_tensors
    dx, dw, db = _backward_operator(dy.contiguous(), x, weight, mean, r, ctx.centred, ctx.step)
    return dx, dw, db if ctx.centred else None, None, None


_operator.register_autograd(_backward, setup_context=_setup_context)
