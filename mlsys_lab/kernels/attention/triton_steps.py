"""Attention in Triton, step by step: softmax(scale · Q·Kᵀ)·V for Q (B, N, S, D) and for K and V (B, K, T, D).

    naive   scores, softmax and weighted values in three kernels: four passes over an (S, T) matrix in memory
    online  one kernel with a running softmax: the matrix is never stored
    flash   the same, without the tiles that a causal mask hides, and with masks only where they hide something

Every step has the same backward pass: weights once more from the log-sum-exp, one kernel for dK and dV, one for dQ. No
atomics: two runs give the same bits. float16, bfloat16 and float32; sums and softmax in float32. On a GPU, float32 with
the precision "ieee" (`tiles.PRECISIONS`) is for comparing: its tiles are small, and their registers still spill.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import tiles
from mlsys_lab.kernels.arguments import check_shared_memory, check_step
from mlsys_lab.kernels.attention import triton_kernels as kernels
from mlsys_lab.kernels.attention.arguments import check_heads
from mlsys_lab.kernels.attention.blocks import KERNELS, WIDEST, Blocks, candidates
from mlsys_lab.kernels.triton_language import triton
from mlsys_lab.kernels.triton_launch import launch
from mlsys_lab.kernels.tuning import fastest
from mlsys_lab.validation import require_positive_number

STEPS = {
    "naive": "scores in memory, softmax over them, weighted values",
    "online": "one kernel with a running softmax",
    "flash": "nothing that the mask hides is computed",
}


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    step: str = "flash",
    precision: str = "ieee",
    blocks: Blocks | None = None,
) -> torch.Tensor:
    """Attention (B, N, S, D), (B, K, T, D), (B, K, T, D) -> (B, N, S, D), differentiable.

    Query head n attends with key/value head n // (N/K). `causal`: query i sees the keys up to i + T - S, as when S new
    tokens follow T - S cached ones; one that sees none gives zeros. `scale` is 1/√D by default. `blocks` overrides what
    a step would take. Raises InputError for tensors that do not fit each other, or blocks that the device cannot hold.
    """
    return attention_with_lse(q, k, v, causal=causal, scale=scale, step=step, precision=precision, blocks=blocks)[0]


def attention_with_lse(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    step: str = "flash",
    precision: str = "ieee",
    blocks: Blocks | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention as in `attention`, and the log-sum-exp of each query's scores, (B, N, S) in float32, to merge parts by.

    Both are differentiable. A query that sees no key has -inf.
    """
    _check(q, k, v, step, precision)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    require_positive_number("scale of attention", scale)
    if blocks is not None:
        room = tiles.limits(q.device).shared_bytes
        for kind in KERNELS:
            check_shared_memory(blocks.shared_bytes(kind, _width(q), q.itemsize), f"{blocks} for {kind}", room)
    chosen = [] if blocks is None else list(astuple(blocks))
    out, lse = forward(q, k, v, causal, scale, step, precision, chosen)
    return out, lse


@torch.library.custom_op("mlsys_lab::attention", mutates_args=())
def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float,
    step: str,
    precision: str,
    blocks: list[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention's output and log-sum-exp, without gradients; `blocks` are the four numbers of a `Blocks`, or empty."""
    (B, N, S, D), (K, T) = q.shape, k.shape[1:3]
    if not q.numel() or not T:
        return q.new_zeros(q.shape), q.new_full((B, N, S), -math.inf, dtype=torch.float32)
    lse = q.new_empty(B, N, S, dtype=torch.float32)
    q, k, v = _align(q), _align(k), _align(v)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    how = {"GROUP": N // K, "CAUSAL": causal, "PRECISION": precision}
    start = functools.partial(_start, q.device)

    def run(blocks: Blocks) -> None:
        """Launch the step's kernels with tiles of these sizes."""
        grid, constants = (B * N * triton.cdiv(S, blocks.m),), blocks.constants(_width(q)) | how
        by_query, by_key = functools.partial(_tiles, blocks.m), functools.partial(_tiles, blocks.n)
        if step != "naive":
            tensors, constants["SKIP"] = (by_query(q), by_key(k), by_key(v), by_query(out), lse), step == "flash"
            written = ("out_tiles", "lse_ptr")
            start(kernels.forward_kernel, grid, *tensors, N, S, T, scale, outputs=written, **constants)
            return
        scores = q.new_empty(B, N, S, T, dtype=torch.float32)
        tiles_in = (by_query(q), by_key(k), scores)
        start(kernels.scores_kernel, grid, *tiles_in, N, S, T, scale, outputs=("scores_ptr",), **constants)
        row = {"BLOCK_T": triton.next_power_of_2(T)}
        start(kernels.softmax_kernel, (B * N * S,), scores, lse, T, outputs=("lse_ptr",), **row)
        del constants["CAUSAL"]
        tiles_out = (scores, by_key(v), by_query(out))
        start(kernels.values_kernel, grid, *tiles_out, N, S, T, outputs=("out_tiles",), **constants)

    run(_choose_blocks("forward", blocks, q, precision, (step, B, N, K, S, T, *how.values()), run))
    return out[..., :D].contiguous(), lse


@forward.register_fake
def _forward_fake(q, k, v, causal, scale, step, precision, blocks):
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("mlsys_lab::attention_backward", mutates_args=())
def backward(
    d_out: torch.Tensor,
    d_lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    causal: bool,
    scale: float,
    precision: str,
    blocks: list[int],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients dQ, dK, dV from the inputs and results of `forward` and the gradients of its results."""
    (B, N, S, D), (K, T) = q.shape, k.shape[1:3]
    if not q.numel() or not T:
        return q.new_zeros(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
    q, k, v, out, d_out = _align(q), _align(k), _align(v), _align(out), _align(d_out)
    width, group = _width(q), N // K
    d_lse, delta = d_lse.contiguous(), torch.empty_like(lse)
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    how = {"GROUP": group, "CAUSAL": causal, "PRECISION": precision}
    start = functools.partial(_start, q.device)

    grid, tensors = (B * N * triton.cdiv(S, 64),), (_tiles(64, out), _tiles(64, d_out), d_lse, delta)
    start(kernels.delta_kernel, grid, *tensors, N, S, outputs=("delta_ptr",), BLOCK_M=64, BLOCK_D=width)

    def inputs(blocks: Blocks) -> tuple[Any, ...]:
        by_query, by_key = functools.partial(_tiles, blocks.m), functools.partial(_tiles, blocks.n)
        return by_query(q), by_key(k), by_key(v), by_query(d_out), lse, delta

    def key_value(blocks: Blocks) -> None:
        grid, constants = (B * K * triton.cdiv(T, blocks.n),), blocks.constants(width) | how
        tensors = (*inputs(blocks), _tiles(blocks.n, dk), _tiles(blocks.n, dv))
        written = ("dk_tiles", "dv_tiles")
        start(kernels.key_value_kernel, grid, *tensors, K, S, T, scale, outputs=written, **constants)

    def query(blocks: Blocks) -> None:
        grid, constants = (B * N * triton.cdiv(S, blocks.m),), blocks.constants(width) | how
        tensors = (*inputs(blocks), _tiles(blocks.m, dq))
        start(kernels.query_kernel, grid, *tensors, N, S, T, scale, outputs=("dq_tiles",), **constants)

    key = (B, N, K, S, T, *how.values())
    key_value(_choose_blocks("key_value", blocks, q, precision, key, key_value))
    query(_choose_blocks("query", blocks, q, precision, key, query))
    return dq[..., :D].contiguous(), dk[..., :D].contiguous(), dv[..., :D].contiguous()


@backward.register_fake
def _backward_fake(d_out, d_lse, q, k, v, out, lse, causal, scale, precision, blocks):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, ctx.causal, ctx.scale, _, ctx.precision, ctx.blocks = inputs
    ctx.save_for_backward(q, k, v, *output)


def _autograd(ctx: Any, d_out: torch.Tensor, d_lse: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    how = (ctx.causal, ctx.scale, ctx.precision, ctx.blocks)
    dq, dk, dv = backward(d_out, d_lse, *ctx.saved_tensors, *how)
    return dq, dk, dv, None, None, None, None, None


forward.register_autograd(_autograd, setup_context=_setup_context)


def _start(device: torch.device, kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    launch(kernel, grid, device, *args, **options)


def _choose_blocks(
    kind: str, given: list[int], q: torch.Tensor, precision: str, key: tuple[Any, ...], run: Callable[[Blocks], None]
) -> Blocks:
    """The cut that the caller asked for, or else the fastest of the candidates that fit."""
    if given:
        return Blocks(*given)
    width = _width(q)
    small = tiles.unrolls_products(q.dtype, precision)
    fitting = candidates(kind, width, q.itemsize, tiles.limits(q.device).shared_bytes, small=small)
    return fastest((kind, *key, width, q.dtype, q.device), fitting, run)


def _width(q: torch.Tensor) -> int:
    """Columns of a tile: the heads' width rounded up to a power of two."""
    return max(16, int(triton.next_power_of_2(q.shape[-1])))


def _tiles(rows: int, x: torch.Tensor) -> Any:
    """A tensor descriptor of (…, rows, columns) tiles of `x`, whose rows must be aligned as `_align` makes them."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    # A dimension of size 1 may have any stride in torch; the copy engine asks for multiples of 16 bytes of that, too.
    strides = [stride if n > 1 else x.shape[-1] for n, stride in zip(x.shape[:-1], x.stride(), strict=False)]
    return TensorDescriptor(x, list(x.shape), [*strides, 1], [1, 1, rows, _width(x)])


def _align(x: torch.Tensor) -> torch.Tensor:
    """`x`, or a copy with zero columns whose rows begin at multiples of 16 bytes, as the copy engine needs it."""
    if odd := x.shape[-1] * x.itemsize % 16:
        return torch.nn.functional.pad(x, (0, (16 - odd) // x.itemsize))
    strides = [stride for stride, n in zip(x.stride()[:-1], x.shape[:-1], strict=True) if n > 1]
    fits = x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(s > 0 and s * x.itemsize % 16 == 0 for s in strides)
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: str, precision: str) -> None:
    check_step(step, STEPS)
    tiles.check_precision(precision)
    tiles.check_operands(4, q=q, k=k, v=v)
    check_heads(q, k, v)
    if q.shape[-1] > WIDEST:
        raise InputError("width of heads", got=q.shape[-1], expected=f"at most {WIDEST}")
