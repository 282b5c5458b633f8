"""Attention for a ragged batch over a cache in pages: several new queries a sequence, as many as each happens to have.

Chunks of prompts, drafts to be checked and single tokens go together in one step. For inference only: no gradients.

reference   torch, sequence by sequence
padded      torch, all sequences in one call, filled up to the longest
packed      Triton, no padding: a program takes a few queries of one sequence for the heads that share a key
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from mlsys_lab.kernels.arguments import check_tensors
from mlsys_lab.kernels.attention import REFERENCE_DTYPES
from mlsys_lab.kernels.decode_attention.arguments import check_cache, check_pages, check_table
from mlsys_lab.kernels.ragged_attention.arguments import check_queries, check_starts, check_window

STEPS = {
    "reference": "torch: each sequence's pages gathered, attention over them",
    "padded": "torch: one call for all sequences, filled up to the longest",
    "packed": "Triton: a program takes a few queries of one sequence and key/value head",
}


def reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    starts: torch.Tensor,
    *,
    window: int | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention of a ragged batch in torch, sequence by sequence; arguments as those of `ragged_attention`."""
    (_, N, D), (_, page, K, _), out = q.shape, k_cache.shape, torch.empty_like(q)
    ends, scale = starts.tolist(), 1 / math.sqrt(D) if scale is None else scale
    for pages, length, first, end in zip(table, lengths.tolist(), ends, ends[1:], strict=False):
        used = pages[: -(-length // page)].long()
        k, v = (  # (N, T, D)
            cache[used].flatten(0, 1)[:length].transpose(0, 1).repeat_interleave(N // K, 0)
            for cache in (k_cache, v_cache)
        )
        keys = torch.arange(length, device=q.device)
        queries = keys[length - (end - first) :, None]
        hidden = keys > queries if window is None else (keys > queries) | (keys <= queries - window)
        scores = (q[first:end].transpose(0, 1) @ k.mT * scale).masked_fill(hidden, -math.inf)  # (N, S, T)
        out[first:end] = (scores.softmax(-1) @ v).transpose(0, 1)
    return out


def padded(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    starts: torch.Tensor,
    *,
    window: int | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention of a ragged batch by one call of torch's; arguments as those of `ragged_attention`.

    B·S·T scores, S and T of the sequences with most queries and most tokens: what the short ones lack is worked out
    and thrown away.
    """
    page, counts = k_cache.shape[1], starts.diff()
    if not q.numel():
        return torch.empty_like(q)
    keys = torch.arange(int(lengths.max()), device=q.device)
    pages = torch.where(keys < lengths[:, None], table[:, keys // page], 0).long()  # (B, T)
    k, v = (cache[pages, keys % page].transpose(1, 2) for cache in (k_cache, v_cache))  # (B, K, T, D)
    row = torch.repeat_interleave(torch.arange(len(lengths), device=q.device), counts.long())  # (Q,)
    column = torch.arange(len(q), device=q.device) - starts[row]
    rows = q.new_zeros(len(lengths), int(counts.max()), *q.shape[1:])  # (B, S, N, D)
    rows[row, column] = q
    places = (lengths - counts)[:, None] + torch.arange(rows.shape[1], device=q.device)  # (B, S)
    seen = keys <= places[..., None]  # (B, S, T)
    if window is not None:
        seen &= keys > places[..., None] - window
    heads = F.scaled_dot_product_attention(
        rows.transpose(1, 2), k, v, attn_mask=seen[:, None], scale=scale, enable_gqa=k.shape[1] != q.shape[1]
    )  # (B, N, S, D)
    return heads.transpose(1, 2)[row, column]


def ragged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    starts: torch.Tensor,
    *,
    window: int | None = None,
    scale: float | None = None,
    step: str = "packed",
) -> torch.Tensor:
    """Attend with the last tokens of each sequence over its first `lengths` cached ones, causally: (Q, N, D) -> same.

    Sequence b of B has queries `starts`[b] to `starts`[b+1] - 1, at its last positions; their own keys are in the cache
    already. The caches are (pages, page size, K, D); `table` (B, pages) says which pages hold a sequence, in order.
    Query head n attends with key/value head n // (N/K). With a `window` a query sees itself and the `window` - 1 tokens
    before. `scale` is 1/√D by default. Raises InputError for tensors that do not fit each other, starts that are not in
    order, pages that the caches do not have, and an unknown step.
    """
    if step in ("reference", "padded"):
        check_tensors(REFERENCE_DTYPES, q=q, k_cache=k_cache, v_cache=v_cache)
        check_cache(q, k_cache, v_cache)
        check_starts(q, starts)
        check_table(q, table, lengths, len(starts) - 1)
        check_window(window)
        check_pages(k_cache, table, lengths)
        check_queries(q, lengths, starts)
        attend = reference if step == "reference" else padded
        return attend(q, k_cache, v_cache, table, lengths, starts, window=window, scale=scale)
    from mlsys_lab.kernels.ragged_attention import triton_steps

    return triton_steps.ragged_attention(
        q, k_cache, v_cache, table, lengths, starts, window=window, scale=scale, step=step
    )
