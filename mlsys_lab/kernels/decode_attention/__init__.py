"""Paged decode attention: one query token per sequence, keys and values in the blocks of a KV cache.

    reference  torch, sequence by sequence
    unsplit    Triton: one program per sequence and KV head, however long the sequence
    split      Triton: several programs per sequence, whose partial softmaxes a second kernel combines

Sums are in float32. Gradients are computed by torch over the gathered blocks: correct, but not fast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import tiles
from mlsys_lab.kernels.arguments import check_shared_memory, check_step
from mlsys_lab.kernels.attention import reference as attention_reference
from mlsys_lab.kernels.paged_cache import (
    NUM_STAGES,
    check_block_ids,
    check_kernel_operands,
    check_paged_cache,
    keys_per_tile,
)
from mlsys_lab.kernels.row_blocks import next_power_of_2
from mlsys_lab.kernels.triton_launch import launch

STEPS = {
    "reference": "torch: each sequence's cache blocks gathered, attention over them",
    "unsplit": "Triton: one program per sequence and KV head",
    "split": "Triton: several programs per sequence, a second kernel combines their softmaxes",
}

PROGRAMS_PER_MULTIPROCESSOR = 3
"""Programs that a split makes for each multiprocessor, as many as its shared memory holds tiles for."""

SPLITS_AT_ONCE = 16
"""Splits whose outputs the combining kernel holds at once."""


def reference(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float | None = None
) -> Tensor:
    """Decode attention in torch, sequence by sequence; arguments as those of `decode_attention`."""
    block_size, outs = k_cache.shape[1], []
    for query, blocks, length in zip(q, block_table, seq_lens.tolist(), strict=True):
        used = blocks[: -(-length // block_size)]
        k, v = (cache[used].flatten(0, 1)[:length].transpose(0, 1) for cache in (k_cache, v_cache))  # (K, T, D)
        outs.append(attention_reference(query[None, :, None], k[None], v[None], scale=scale)[0, :, 0])
    return torch.stack(outs) if outs else torch.empty_like(q)


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float | None = None,
    step: str = "split",
    precision: str = "ieee",
    block_n: int | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """Attend with one query per sequence over its first `seq_lens` cached tokens: (B, N, D) -> (B, N, D).

    The caches are (num_blocks, block_size, K, D); `block_table` (B, max blocks) lists each sequence's blocks in order,
    and entries past its length are not read. Query head n attends with KV head n // (N/K). `scale` is 1/√D by default.
    An empty sequence gets zeros from the Triton steps, which take tiles of `block_n` keys and cut a sequence into
    `num_splits` ranges of keys, both chosen by size if not given. Raises InputError for tensors that do not match, an
    unknown step or precision, and on the CPU for lengths and block ids out of range (checking them on a GPU would wait
    for it).
    """
    check_step(step, STEPS)
    if step == "reference":
        check_paged_cache(q, k_cache, v_cache, block_table, seq_lens)
        check_block_ids(k_cache, block_table, seq_lens)
        return reference(q, k_cache, v_cache, block_table, seq_lens, scale=scale)
    check_kernel_operands(q, k_cache, v_cache, precision)
    check_paged_cache(q, k_cache, v_cache, block_table, seq_lens)
    block_n = keys_per_tile(q, block_n)
    tile_bytes = 2 * NUM_STAGES * block_n * tiles.padded_head_dim(q) * q.itemsize
    check_shared_memory(tile_bytes, f"a tile of {block_n} keys", tiles.device_limits(q.device).shared_bytes)
    if num_splits is None:
        num_splits = _num_splits(q, k_cache, block_table, block_n) if step == "split" else 1
    elif num_splits < 1 or (step == "unsplit" and num_splits != 1):
        raise InputError("num_splits", got=num_splits, expected='1 or more, and 1 in step "unsplit"')
    scale = tiles.softmax_scale(q, scale)
    out: Tensor = _forward(q, k_cache, v_cache, block_table, seq_lens, scale, precision, block_n, num_splits)[0]
    return out


def _num_splits(q: Tensor, k_cache: Tensor, block_table: Tensor, block_n: int) -> int:
    """Enough splits to fill the device, each of at least two tiles if the sequences fill their tables.

    The lengths are on the device: reading the longest would wait for it.
    """
    programs = max(1, q.shape[0] * k_cache.shape[2])
    wanted = -(-PROGRAMS_PER_MULTIPROCESSOR * tiles.device_limits(q.device).multiprocessors // programs)
    return max(1, min(wanted, block_table.shape[1] * k_cache.shape[1] // (2 * block_n)))


@torch.library.custom_op("mlsys_lab::decode_attention", mutates_args=())
def _forward(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    precision: str,
    block_n: int,
    num_splits: int,
) -> tuple[Tensor, Tensor]:
    """Attention's output (B, N, D), and the log-sum-exp of each query, (B, N)."""
    from mlsys_lab.kernels.decode_attention.triton_kernels import combine_kernel, split_kernel

    (B, N, D), (_, block_size, K, _) = q.shape, k_cache.shape
    out, lse = _forward_fake(q)
    if not q.numel():
        return out, lse
    if q.device.type == "cpu":
        check_block_ids(k_cache, block_table, seq_lens)
    split_out, split_lse = out, lse
    if num_splits > 1:
        split_out = q.new_empty(B, N, num_splits, D, dtype=torch.float32)
        split_lse = q.new_empty(B, N, num_splits, dtype=torch.float32)
    dims = {"D": D, "BLOCK_D": tiles.padded_head_dim(q)}
    launch(
        split_kernel,
        (B, K, num_splits),
        q.device,
        *(q, k_cache, v_cache, block_table, seq_lens, split_out, split_lse),
        *(*q.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3], block_table.stride(0), scale),
        **dims,
        **{"GROUP": N // K, "ROWS": max(16, next_power_of_2(N // K)), "BLOCK_SIZE": block_size},
        **{"BLOCK_N": block_n, "PRECISION": precision, "num_warps": 4, "num_stages": NUM_STAGES},
        outputs=("out_ptr", "lse_ptr"),
    )
    if num_splits > 1:
        tensors, constants = (split_out, split_lse, out, lse), {"BLOCK_SPLITS": SPLITS_AT_ONCE} | dims
        launch(combine_kernel, (B * N,), q.device, *tensors, num_splits, outputs=("out_ptr", "lse_ptr"), **constants)
    return out, lse


@_forward.register_fake
def _forward_fake(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale, _, _, _ = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(*tensors, out, lse)


def _vjp(ctx: Any, d_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients over the gathered tokens; those of keys and values are summed into their cache blocks."""
    q, k_cache, v_cache, block_table, seq_lens, out, lse = ctx.saved_tensors
    (B, N, D), (_, block_size, K, _) = q.shape, k_cache.shape
    tokens = torch.arange(block_table.shape[1] * block_size, device=q.device)
    mask = (tokens < seq_lens[:, None])[:, None, None, :]  # (B, 1, 1, T)
    block_ids = torch.where(tokens[::block_size] < seq_lens[:, None], block_table, 0).long()
    keys, values = (cache[block_ids].flatten(1, 2).float() for cache in (k_cache, v_cache))  # (B, T, K, D)
    queries, d_outs, outs = (x.float().view(B, K, N // K, D) for x in (q.contiguous(), d_out.contiguous(), out))
    scores = torch.einsum("bkgd,btkd->bkgt", queries, keys) * ctx.scale
    weights = torch.where(mask, (scores - lse.view(B, K, N // K, 1)).exp(), 0.0)
    d_weights = torch.einsum("bkgd,btkd->bkgt", d_outs, values)
    delta = (d_outs * outs).sum(-1, keepdim=True)
    d_scores = torch.where(mask, weights * (d_weights - delta) * ctx.scale, 0.0)
    dq = torch.einsum("bkgt,btkd->bkgd", d_scores, keys).reshape(B, N, D).to(q.dtype)

    def scatter(cache: Tensor, d_tokens: Tensor) -> Tensor:
        d_blocks = d_tokens.view(*block_table.shape, block_size, *d_tokens.shape[2:])
        d_cache = torch.zeros(cache.shape, dtype=torch.float32, device=cache.device)
        return d_cache.index_put((block_ids,), d_blocks, accumulate=True).to(cache.dtype)

    dk = scatter(k_cache, torch.einsum("bkgt,bkgd->btkd", d_scores, queries))
    dv = scatter(v_cache, torch.einsum("bkgt,bkgd->btkd", weights, d_outs))
    return dq, dk, dv, None, None, None, None, None, None


_forward.register_autograd(_vjp, setup_context=_setup_context)
