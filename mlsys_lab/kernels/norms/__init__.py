"""Layer norm (Ba, Kiros, Hinton, 2016) and RMS norm (Zhang and Sennrich, 2019) along the last dimension."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.arguments import check_contiguous, check_shape, check_step
from mlsys_lab.kernels.row_blocks import DTYPES, RowBlock, next_power_of_2, row_block, rows_and_width
from mlsys_lab.kernels.tiles import device_limits
from mlsys_lab.kernels.triton_launch import launch

STEPS = {
    "one_block": "a program per block of rows: each reads the weights and writes a partial sum of their gradient",
    "persistent": "as many programs as run at once, each looping over rows: weights and partial sums stay in registers",
}

MAX_WIDTH = 32768
"""Widest row that one program holds in registers: 32 elements in each of 1,024 threads."""

MAX_CACHED_WEIGHT_WIDTH = 8192
"""Widest weight that a program keeps in registers along with a row; wider ones are reloaded for every row."""

MAX_ONE_PASS_BACKWARD_WIDTH = 8192
"""Widest row of which x, dy and the partial sums of dw and db fit into one program's registers together."""

MAX_BIAS_PARTIAL_WIDTH = 16384
"""Widest row of which the partial sums of dw and db fit into registers; beyond, db is summed apart, reading dy again.

Layer norm's backward pass then moves 4·N·D elements, not 3·N·D. At 32,768 wide, dw and db together have as many numbers
as a multiprocessor has registers, 65,536; and a partial db kept in memory would be read and written for every row, 8
bytes an element, where dy is 2 or 4.
"""

CHUNK = 4096
"""Elements of a chunk of a row that is wider than `MAX_ONE_PASS_BACKWARD_WIDTH`."""

RMS_THREADS, LAYER_THREADS, BACKWARD_THREADS = 1024, 512, 512
"""Threads of persistent programs on one multiprocessor: all are resident, and registers have room for no more."""


def reference_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float = 1e-5) -> Tensor:
    """Layer norm along the last dimension in torch, one operation after another, each a pass over memory."""
    centred = x.float() - x.float().mean(-1, keepdim=True)
    x_hat = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (x_hat * weight.float() + bias.float()).to(x.dtype)


def reference_rms_norm(x: Tensor, weight: Tensor, *, eps: float = 1e-6) -> Tensor:
    """RMS norm along the last dimension in torch, one operation after another, each a pass over memory."""
    x_hat = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (x_hat * weight.float()).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float = 1e-5, step: str = "persistent") -> Tensor:
    """Layer norm (x − mean) / √(variance + eps) · weight + bias for (…, D), (D,), (D,), differentiable.

    `step` is one of `STEPS`. Computed in float32, returned in x's dtype. Raises InputError for shapes, dtypes or
    devices that do not match, rows wider than `MAX_WIDTH`, an unknown step, or no bias.
    """
    if bias is None:
        raise InputError("layer norm needs a bias", got="None", expected="(D,)", help="rms_norm has none")
    return _norm(x, weight, bias, eps, step)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float = 1e-6, step: str = "persistent") -> Tensor:
    """RMS norm x / √(mean of x² + eps) · weight for (…, D), (D,), differentiable; otherwise as `layer_norm`."""
    return _norm(x, weight, None, eps, step)


def _norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, step: str) -> Tensor:
    check_step(step, STEPS)
    parameters = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    check_contiguous(DTYPES, x=x, **parameters)
    _, D = rows_and_width(x)
    check_shape((D,), **parameters)
    if D > MAX_WIDTH:
        raise InputError("rows too wide for one program", got=D, expected=f"at most {MAX_WIDTH} elements")
    y: Tensor = _forward(x, weight, bias, eps, step)[0]
    return y


def _resident_programs(tile: RowBlock, threads: int) -> int:
    return max(1, threads // (32 * tile.num_warps))


def _num_programs(step: str, num_blocks: int, max_resident: int) -> int:
    return min(num_blocks, max_resident) if step == "persistent" else num_blocks


@torch.library.custom_op("mlsys_lab::norm", mutates_args=())
def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, step: str) -> tuple[Tensor, Tensor, Tensor]:
    """y and, for the backward pass, μ and r of each row, float32; without a bias, RMS norm, whose μ is empty."""
    from mlsys_lab.kernels.norms.triton_kernels import forward_kernel

    y, mean, r = _forward_fake(x, weight, bias, eps, step)
    (N, D), centred = rows_and_width(x), bias is not None
    tile = row_block(D, elements=2048, per_thread=16)
    resident = _resident_programs(tile, LAYER_THREADS if centred else RMS_THREADS)
    programs = _num_programs(step, tile.num_programs(N), device_limits(x.device).multiprocessors * resident)
    launch(
        forward_kernel,
        (programs,),
        x.device,
        *(x, weight, weight if bias is None else bias, y, mean, r, N, D, eps),
        **{"CENTRED": centred, "CACHE_WEIGHTS": D <= MAX_CACHED_WEIGHT_WIDTH},
        **{"STAGES": 2 if D <= MAX_CACHED_WEIGHT_WIDTH else 1},
        **{"ROWS": tile.rows, "BLOCK": tile.block, "num_warps": tile.num_warps},
        outputs=["y_ptr", "mean_ptr", "r_ptr"] if centred else ["y_ptr", "r_ptr"],
    )
    return y, mean, r


@_forward.register_fake
def _forward_fake(x: Tensor, _w: Tensor, bias: Tensor | None, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    rows = x.shape[:-1]
    mean = x.new_empty(0 if bias is None else rows, dtype=torch.float32)
    return torch.empty_like(x), mean, x.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("mlsys_lab::norm_backward", mutates_args=())
def _backward(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, r: Tensor, centred: bool, step: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients dx, dw and db (empty for RMS norm)."""
    from mlsys_lab.kernels.norms.triton_kernels import backward_kernel, wide_backward_kernel

    dx, dw, db = _backward_fake(dy, x, weight, mean, r, centred)
    N, D = rows_and_width(x)
    wide, bias_partial = D > MAX_ONE_PASS_BACKWARD_WIDTH, centred and D <= MAX_BIAS_PARTIAL_WIDTH
    tile = row_block(D, elements=4096, per_thread=16, min_warps=8)
    resident = 1 if wide else _resident_programs(tile, BACKWARD_THREADS)
    programs = _num_programs(step, tile.num_programs(N), device_limits(x.device).multiprocessors * resident)
    partials = x.new_empty(2 if bias_partial else 1, programs, D, dtype=torch.float32)
    constants: dict[str, Any] = {"ROWS": tile.rows, "BLOCK": tile.block, "num_warps": tile.num_warps}
    if wide:
        num_warps = 32 if x.itemsize == 4 else 16  # the widest loads, and no more registers than there are
        constants = {"BIAS": bias_partial, "CHUNKS": -(-D // CHUNK), "BLOCK": CHUNK, "num_warps": num_warps}
    launch(
        wide_backward_kernel if wide else backward_kernel,
        (programs,),
        x.device,
        *(dy, x, weight, mean, r, dx, partials[0], partials[-1], N, D),
        CENTRED=centred,
        **constants,
        outputs=["dx_ptr", "dw_ptr", "db_ptr"],
    )
    _sum_rows(partials, dw, db)
    if centred and not bias_partial:
        _sum_rows(dy.view(1, N, D), db)
    return dx, dw, db


@_backward.register_fake
def _backward_fake(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, r: Tensor, centred: bool, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight), weight.new_empty(weight.shape if centred else 0)


def _sum_rows(partials: Tensor, *totals: Tensor) -> None:
    """Write into each of `totals` the sum of the rows of its matrix in `partials`; the sum of no rows is 0."""
    from mlsys_lab.kernels.norms.triton_kernels import sum_rows_kernel

    matrices, P, D = partials.shape
    rows, block = 128, min(64, max(16, next_power_of_2(D // 128)))
    launch(
        sum_rows_kernel,
        (-(-D // block), matrices),
        partials.device,
        *(partials, totals[0], totals[-1], P, D),
        **{"ROWS": rows, "BLOCK": block, "num_warps": max(4, rows * block // 1024)},
        outputs=["dw_ptr"] if matrices == 1 else ["dw_ptr", "db_ptr"],
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, _, ctx.step = inputs
    _, mean, r = output
    ctx.centred = bias is not None
    ctx.mark_non_differentiable(mean, r)
    ctx.save_for_backward(x, weight, mean, r)


def _vjp(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    dx, dw, db = _backward(dy.contiguous(), *ctx.saved_tensors, ctx.centred, ctx.step)
    return dx, dw, db if ctx.centred else None, None, None


_forward.register_autograd(_vjp, setup_context=_setup_context)
