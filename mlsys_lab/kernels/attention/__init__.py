"""Attention softmax(scale · Q·Kᵀ)·V, with an optional causal mask and grouped heads, in four steps.

    reference  torch, one operation after another
    naive      Triton: scores, softmax and weighted values in three kernels, with the (S, T) matrix in memory
    online     Triton: one kernel with a running softmax, the matrix never stored
    flash      Triton: the same, skipping the tiles that a causal mask hides and masking only at its edge

The Triton steps share one backward pass: weights recomputed from the log-sum-exp, one kernel for dK and dV, one for dQ.
There are no atomics, so two runs give the same bits. Sums and softmax are in float32. On a GPU, float32 inputs with
precision "ieee" (`tiles.PRECISIONS`) are for comparison only: their tiles are small, and registers still spill.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import tiles
from mlsys_lab.kernels.arguments import check_rank, check_shared_memory, check_step, check_tensors
from mlsys_lab.kernels.attention.tile_config import KERNELS, TileConfig, candidate_configs
from mlsys_lab.kernels.row_blocks import next_power_of_2
from mlsys_lab.kernels.triton_launch import launch
from mlsys_lab.kernels.tuning import fastest
from mlsys_lab.validation import require_grouped_heads

STEPS = {
    "reference": "torch: scores, mask, softmax and weighted values, each a pass over memory",
    "naive": "Triton: three kernels, four passes over the matrix of scores",
    "online": "Triton: one kernel with a running softmax, the scores never stored",
    "flash": "Triton: the same without the tiles that a causal mask hides",
}


def reference(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    """Attention written out in torch, in the inputs' dtype: (B, N, S, D), (B, K, T, D), (B, K, T, D) -> (B, N, S, D).

    `causal`: query i sees the keys up to i + T - S; a query without visible keys gets zeros.
    """
    group, (S, T) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)  # (B, N, S, T)
    if not causal:
        return scores.softmax(-1) @ v
    query, key = torch.arange(S, device=q.device)[:, None], torch.arange(T, device=q.device)
    masked = key > query + T - S
    weights = scores.masked_fill(masked, -math.inf).softmax(-1)
    return weights.masked_fill(masked, 0.0) @ v  # a fully masked row has NaN for weights


def model_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *, step: str = "flash") -> Tensor:
    """Causal attention with the signature that `mlsys_lab.models.Transformer` calls; InputError for a score bias."""
    if bias is not None:
        raise InputError("a bias on the scores", got=f"shape {tuple(bias.shape)}", expected="None, causal without one")
    return attention(q, k, v, causal=True, step=step)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    step: str = "flash",
    precision: str = "ieee",
    config: TileConfig | None = None,
) -> Tensor:
    """Attention by one of `STEPS`, differentiable: (B, N, S, D), (B, K, T, D), (B, K, T, D) -> (B, N, S, D).

    Query head n attends with KV head n // (N/K). `causal`: query i sees the keys up to i + T - S, as when S new tokens
    follow T - S cached ones; a query without visible keys gets zeros. `scale` is 1/√D by default. The Triton steps take
    head dimensions up to 256 in float16, bfloat16 or float32, and tile sizes from `config`, by default the fastest.
    Raises InputError for shapes or dtypes that do not match, tiles too large for the device and an unknown step.
    """
    if step != "reference":
        return attention_with_lse(q, k, v, causal=causal, scale=scale, step=step, precision=precision, config=config)[0]
    check_tensors(tiles.REFERENCE_DTYPES, q=q, k=k, v=v)
    _check_shapes(q, k, v)
    return reference(q, k, v, causal=causal, scale=scale)


def attention_with_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    step: str = "flash",
    precision: str = "ieee",
    config: TileConfig | None = None,
) -> tuple[Tensor, Tensor]:
    """`attention` by a Triton step, and the log-sum-exp of each query's scores, (B, N, S) in float32.

    The log-sum-exp merges attention over several sets of keys. Both results are differentiable. A query without visible
    keys has -inf.
    """
    check_step(step, list(STEPS)[1:])
    tiles.check_precision(precision)
    tiles.check_operands(4, q=q, k=k, v=v)
    _check_shapes(q, k, v)
    tiles.check_head_dim(q)
    if config is not None:
        limit = tiles.device_limits(q.device).shared_bytes
        for kernel in KERNELS:
            size_bytes = config.shared_bytes(kernel, tiles.padded_head_dim(q), q.itemsize)
            check_shared_memory(size_bytes, f"{config} for {kernel}", limit)
    fields = [] if config is None else list(astuple(config))
    out, lse = forward(q, k, v, causal, tiles.softmax_scale(q, scale), step, precision, fields)
    return out, lse


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    check_rank(4, q=q, k=k, v=v)
    if k.shape != v.shape:
        raise InputError("k and v have two shapes", got=f"{tuple(k.shape)} and {tuple(v.shape)}")
    (B, N, _, D), (kv_batch, K, _, kv_dim) = q.shape, k.shape
    if (kv_batch, kv_dim) != (B, D):
        shapes = f"{tuple(q.shape)} and {tuple(k.shape)}"
        raise InputError("q and k do not fit", got=shapes, expected="the same batch size and head dimension")
    if not D:
        raise InputError("head dimension", got=D, expected="1 or more")
    require_grouped_heads(N, K)


@torch.library.custom_op("mlsys_lab::attention", mutates_args=())
def forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, step: str, precision: str, config: list[int]
) -> tuple[Tensor, Tensor]:
    """Attention's output and log-sum-exp, without gradients; `config` is a `TileConfig`'s fields, or empty."""
    from mlsys_lab.kernels.attention import triton_kernels as kernels

    (B, N, S, D), (K, T) = q.shape, k.shape[1:3]
    if not q.numel() or not T:
        return q.new_zeros(q.shape), q.new_full((B, N, S), -math.inf, dtype=torch.float32)
    lse = q.new_empty(B, N, S, dtype=torch.float32)
    q, k, v = _align(q), _align(k), _align(v)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    options = {"GROUP": N // K, "CAUSAL": causal, "PRECISION": precision}

    def run(config: TileConfig) -> None:
        grid, constants = (B * N * math.ceil(S / config.block_m),), config.constants(tiles.padded_head_dim(q)) | options
        by_query, by_key = partial(_descriptor, config.block_m), partial(_descriptor, config.block_n)
        if step != "naive":
            tensors, constants["SKIP_MASKED"] = (by_query(q), by_key(k), by_key(v), by_query(out), lse), step == "flash"
            outputs = ("out_desc", "lse_ptr")
            launch(kernels.forward_kernel, grid, q.device, *tensors, N, S, T, scale, outputs=outputs, **constants)
            return
        scores = q.new_empty(B, N, S, T, dtype=torch.float32)
        inputs = (by_query(q), by_key(k), scores, N, S, T, scale)
        launch(kernels.scores_kernel, grid, q.device, *inputs, outputs=("scores_ptr",), **constants)
        row = {"BLOCK_T": next_power_of_2(T)}
        launch(kernels.softmax_kernel, (B * N * S,), q.device, scores, lse, T, outputs=("lse_ptr",), **row)
        del constants["CAUSAL"]
        weighted = (scores, by_key(v), by_query(out), N, S, T)
        launch(kernels.values_kernel, grid, q.device, *weighted, outputs=("out_desc",), **constants)

    run(_choose_config("forward", config, q, precision, (step, B, N, K, S, T, *options.values()), run))
    return out[..., :D].contiguous(), lse


@forward.register_fake
def _forward_fake(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("mlsys_lab::attention_backward", mutates_args=())
def backward(
    d_out: Tensor,
    d_lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    precision: str,
    config: list[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients dQ, dK, dV from the inputs and results of `forward` and the gradients of its results."""
    from mlsys_lab.kernels.attention import triton_kernels as kernels

    (B, N, S, D), (K, T) = q.shape, k.shape[1:3]
    if not q.numel() or not T:
        return q.new_zeros(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
    q, k, v, out, d_out = _align(q), _align(k), _align(v), _align(out), _align(d_out)
    head_dim = tiles.padded_head_dim(q)
    d_lse, delta = d_lse.contiguous(), torch.empty_like(lse)
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    options = {"GROUP": N // K, "CAUSAL": causal, "PRECISION": precision}

    grid, tensors = (B * N * math.ceil(S / 64),), (_descriptor(64, out), _descriptor(64, d_out), d_lse, delta)
    constants = {"BLOCK_M": 64, "BLOCK_D": head_dim}
    launch(kernels.delta_kernel, grid, q.device, *tensors, N, S, outputs=("delta_ptr",), **constants)

    def inputs(config: TileConfig) -> tuple[Any, ...]:
        by_query, by_key = partial(_descriptor, config.block_m), partial(_descriptor, config.block_n)
        return by_query(q), by_key(k), by_key(v), by_query(d_out), lse, delta

    def run_dkdv(config: TileConfig) -> None:
        grid, constants = (B * K * math.ceil(T / config.block_n),), config.constants(head_dim) | options
        tensors = (*inputs(config), _descriptor(config.block_n, dk), _descriptor(config.block_n, dv))
        outputs = ("dk_desc", "dv_desc")
        launch(kernels.dkdv_kernel, grid, q.device, *tensors, K, S, T, scale, outputs=outputs, **constants)

    def run_dq(config: TileConfig) -> None:
        grid, constants = (B * N * math.ceil(S / config.block_m),), config.constants(head_dim) | options
        tensors = (*inputs(config), _descriptor(config.block_m, dq))
        launch(kernels.dq_kernel, grid, q.device, *tensors, N, S, T, scale, outputs=("dq_desc",), **constants)

    key = (B, N, K, S, T, *options.values())
    run_dkdv(_choose_config("dkdv", config, q, precision, key, run_dkdv))
    run_dq(_choose_config("dq", config, q, precision, key, run_dq))
    return dq[..., :D].contiguous(), dk[..., :D].contiguous(), dv[..., :D].contiguous()


@backward.register_fake
def _backward_fake(d_out: Tensor, d_lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, ...]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ctx.causal, ctx.scale, _, ctx.precision, ctx.config = inputs
    ctx.save_for_backward(q, k, v, *output)


def _vjp(ctx: Any, d_out: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
    options = (ctx.causal, ctx.scale, ctx.precision, ctx.config)
    return *backward(d_out, d_lse, *ctx.saved_tensors, *options), None, None, None, None, None


forward.register_autograd(_vjp, setup_context=_setup_context)


def _choose_config(
    kernel: str, given: list[int], q: Tensor, precision: str, key: tuple[Any, ...], run: Callable[[TileConfig], None]
) -> TileConfig:
    """The caller's configuration, or else the fastest that fits."""
    if given:
        return TileConfig(*given)
    head_dim, unrolled = tiles.padded_head_dim(q), tiles.unrolls_products(q.dtype, precision)
    limit = tiles.device_limits(q.device).shared_bytes
    configs = candidate_configs(kernel, head_dim, q.itemsize, limit, unrolled=unrolled)
    return fastest((kernel, *key, head_dim, q.dtype, q.device), configs, run)


def _descriptor(rows: int, x: Tensor) -> Any:
    """A tensor descriptor of (…, rows, columns) tiles of `x`, whose rows must be aligned as `_align` makes them."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    # In torch a dimension of size 1 may have any stride; the copy engine wants multiples of 16 bytes there as well.
    strides = [stride if n > 1 else x.shape[-1] for n, stride in zip(x.shape[:-1], x.stride(), strict=False)]
    return TensorDescriptor(x, list(x.shape), [*strides, 1], [1, 1, rows, tiles.padded_head_dim(x)])


def _align(x: Tensor) -> Tensor:
    """`x`, or a copy padded with zero columns whose rows start at multiples of 16 bytes, as the copy engine needs."""
    if odd := x.shape[-1] * x.itemsize % 16:
        return torch.nn.functional.pad(x, (0, (16 - odd) // x.itemsize))
    strides = [stride for stride, n in zip(x.stride()[:-1], x.shape[:-1], strict=True) if n > 1]
    fits = x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(s > 0 and s * x.itemsize % 16 == 0 for s in strides)
    return x if fits else x.clone(memory_format=torch.contiguous_format)
