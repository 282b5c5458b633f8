"""Decode attention in Triton over a paged cache, in two steps.

    whole  one program for each sequence and key/value head, whatever the sequence's length
    split  a sequence's keys are shared among programs, and a second kernel merges their softmaxes

q is (B, N, D), one new token a sequence; caches are (pages, page size, K, D); the table (B, longest in pages) and the
lengths (B,) are integers. Sums are float32. Gradients are torch's own, over the gathered pages: right, not fast.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import tiles
from mlsys_lab.kernels.arguments import check_rank, check_shared_memory, check_step, check_tensors
from mlsys_lab.kernels.decode_attention.arguments import check_cache, check_pages, check_table
from mlsys_lab.kernels.decode_attention.triton_kernels import merge_kernel, part_kernel
from mlsys_lab.kernels.triton_language import triton
from mlsys_lab.kernels.triton_launch import launch
from mlsys_lab.validation import require_positive_number, require_power_of_two

STEPS = {
    "whole": "one program a sequence and key/value head",
    "split": "programs share a sequence, a second kernel merges",
}
WIDEST = 256
"""Widest head whose tiles fit a block's shared memory."""

PROGRAMS_PER_MULTIPROCESSOR = 3
"""Programs that a split makes for each multiprocessor, which has shared memory for as many blocks' tiles at once."""

STAGES, TILE_BYTES = 3, 16 * 1024
"""Tiles of keys and of values in flight at once, and the bytes of one: three blocks find room in an H100's."""

MERGED_AT_ONCE = 16
"""Number of parts whose outputs the merging kernel holds at once."""


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float | None = None,
    step: str = "split",
    precision: str = "ieee",
    block_n: int | None = None,
    parts: int | None = None,
) -> torch.Tensor:
    """Attend with each sequence's query over its first `lengths` tokens (zeros for 0): (B, N, D) -> (B, N, D).

    `block_n` keys are worked on at once, and "split" makes `parts` parts; both are chosen by size where they are not
    given. Entries of `table` past a sequence's pages are not looked at. Raises InputError; on the CPU also for lengths
    and pages that there are not, which a GPU would have to be waited for to see.
    """
    _check(q, k_cache, v_cache, table, lengths, step, precision)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    require_positive_number("scale of attention", scale)
    block_n = max(16, min(128, TILE_BYTES // (_width(q) * q.itemsize))) if block_n is None else block_n
    require_power_of_two("keys of a tile", block_n, at_least=16)
    room = tiles.limits(q.device).shared_bytes
    check_shared_memory(2 * STAGES * block_n * _width(q) * q.itemsize, f"a tile of {block_n} keys", room)
    if parts is None:
        parts = _parts(q, k_cache, table, block_n) if step == "split" else 1
    elif parts < 1 or (step == "whole" and parts != 1):
        raise InputError("parts of a sequence", got=parts, expected="1 or more, and 1 in the step that does not split")
    out: torch.Tensor = _operator(q, k_cache, v_cache, table, lengths, scale, precision, block_n, parts)[0]
    return out


@torch.library.custom_op("mlsys_lab::decode_attention", mutates_args=())
def _operator(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    precision: str,
    block_n: int,
    parts: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention's output (B, N, D), and the log-sum-exp of each query, (B, N)."""
    (B, N, D), (_, page, K, _) = q.shape, k_cache.shape
    out, lse = q.new_empty(q.shape), q.new_empty(B, N, dtype=torch.float32)
    if not q.numel():
        return out, lse
    if q.device.type == "cpu":
        check_pages(k_cache, table, lengths)
    part, part_lse = out, lse
    if parts > 1:
        part, part_lse = (q.new_empty(shape, dtype=torch.float32) for shape in ((B, N, parts, D), (B, N, parts)))
    strides = (*q.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3], table.stride(0))
    widths = {"D": D, "BLOCK_D": _width(q)}
    group = {"GROUP": N // K, "ROWS": max(16, triton.next_power_of_2(N // K)), "PAGE": page}
    options = {"BLOCK_N": block_n, "PRECISION": precision, "num_warps": 4, "num_stages": STAGES}
    tensors = (q, k_cache, v_cache, table, lengths, part, part_lse)
    written = ("part_ptr", "lse_ptr")
    grid = (B, K, parts)
    launch(part_kernel, grid, q.device, *tensors, *strides, scale, outputs=written, **widths, **group, **options)
    if parts > 1:
        merged, written = {"BLOCK_PARTS": MERGED_AT_ONCE}, ("out_ptr", "lse_ptr")
        launch(merge_kernel, (B * N,), q.device, part, part_lse, out, lse, parts, outputs=written, **widths, **merged)
    return out, lse


@_operator.register_fake
def _fake(q, k_cache, v_cache, table, lengths, scale, precision, block_n, parts):
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    *tensors, ctx.scale, _, _, _ = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(*tensors, out, lse)


def _backward(ctx: Any, d_out: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Gradients of decode attention over the gathered tokens; those of keys and values are summed into their pages."""
    q, k_cache, v_cache, table, lengths, out, lse = ctx.saved_tensors
    (B, N, D), (_, page, K, _) = q.shape, k_cache.shape
    tokens = torch.arange(table.shape[1] * page, device=q.device)
    inside = (tokens < lengths[:, None])[:, None, None, :]  # (B, 1, 1, T)
    pages = torch.where(torch.arange(table.shape[1], device=q.device) * page < lengths[:, None], table, 0).long()
    keys, values = (cache[pages].flatten(1, 2).float() for cache in (k_cache, v_cache))  # (B, T, K, D)
    queries, d_outs, outs = (x.float().view(B, K, N // K, D) for x in (q.contiguous(), d_out.contiguous(), out))
    scores = torch.einsum("bkgd,btkd->bkgt", queries, keys) * ctx.scale
    weights = torch.where(inside, (scores - lse.view(B, K, N // K, 1)).exp(), 0.0)
    d_weights = torch.einsum("bkgd,btkd->bkgt", d_outs, values)
    delta = (d_outs * outs).sum(-1, keepdim=True)
    d_scores = torch.where(inside, weights * (d_weights - delta) * ctx.scale, 0.0)
    dq = torch.einsum("bkgt,btkd->bkgd", d_scores, keys).reshape(B, N, D).to(q.dtype)

    def in_pages(cache: torch.Tensor, d_tokens: torch.Tensor) -> torch.Tensor:
        d_pages = d_tokens.view(*table.shape, page, *d_tokens.shape[2:])
        d_cache = torch.zeros(cache.shape, dtype=torch.float32, device=cache.device)
        return d_cache.index_put((pages,), d_pages, accumulate=True).to(cache.dtype)

    dk = in_pages(k_cache, torch.einsum("bkgt,bkgd->btkd", d_scores, queries))
    dv = in_pages(v_cache, torch.einsum("bkgt,bkgd->btkd", weights, d_outs))
    return dq, dk, dv, None, None, None, None, None, None


_operator.register_autograd(_backward, setup_context=_setup_context)


def _parts(q: torch.Tensor, k_cache: torch.Tensor, table: torch.Tensor, block_n: int) -> int:
    """Parts of a sequence: as many as fill the device, each of at least two tiles if sequences fill the table.

    Lengths are on the device: to ask for the longest would be to wait for it.
    """
    programs = max(1, q.shape[0] * k_cache.shape[2])
    wanted = -(-PROGRAMS_PER_MULTIPROCESSOR * tiles.limits(q.device).multiprocessors // programs)
    most = table.shape[1] * k_cache.shape[1] // (2 * block_n)
    return max(1, min(wanted, most))


def _width(q: torch.Tensor) -> int:
    """Columns of a tile: the heads' width rounded up to a power of two."""
    return max(16, int(triton.next_power_of_2(q.shape[-1])))


def _check(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    step: str,
    precision: str,
) -> None:
    check_step(step, STEPS)
    tiles.check_precision(precision)
    check_tensors(tiles.DTYPES, q=q)
    check_rank(3, q=q)
    tiles.check_operands(4, q=q[:, None], k_cache=k_cache, v_cache=v_cache)
    check_cache(q, k_cache, v_cache)
    check_table(q, table, lengths, len(q))
    if q.shape[-1] > WIDEST:
        raise InputError("width of heads", got=q.shape[-1], expected=f"at most {WIDEST}")
