"""Decode attention: one new query a sequence over a cache in pages.

reference   torch, sequence by sequence
whole       Triton, one program a sequence and key/value head
split       Triton, programs share a sequence and a second kernel merges
"""

from __future__ import annotations

import torch

from mlsys_lab.kernels.arguments import check_tensors
from mlsys_lab.kernels.attention import REFERENCE_DTYPES
from mlsys_lab.kernels.attention import reference as attention_reference
from mlsys_lab.kernels.decode_attention.arguments import check_cache, check_pages, check_table

STEPS = {
    "reference": "torch: each sequence's pages gathered, attention over them",
    "whole": "Triton: one program a sequence and key/value head",
    "split": "Triton: programs share a sequence, a second kernel merges their softmaxes",
}


def reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """Decode attention in torch: (B, N, D), two caches (pages, page size, K, D), (B, pages), (B,) -> (B, N, D)."""
    page, outs = k_cache.shape[1], []
    for query, pages, length in zip(q, table, lengths.tolist(), strict=True):
        used = pages[: -(-length // page)]
        k, v = (cache[used].flatten(0, 1)[:length].transpose(0, 1) for cache in (k_cache, v_cache))  # (K, T, D)
        outs.append(attention_reference(query[None, :, None], k[None], v[None], scale=scale)[0, :, 0])
    return torch.stack(outs) if outs else torch.empty_like(q)


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float | None = None,
    step: str = "split",
) -> torch.Tensor:
    """Attend with each sequence's one query over its first `lengths` cached tokens: (B, N, D) -> (B, N, D).

    The caches are (pages, page size, K, D); `table` (B, pages) says which pages hold a sequence, in order. Query head n
    attends with key/value head n // (N/K). `scale` is 1/√D by default. Raises InputError for tensors that do not fit
    each other, pages that the caches do not have, and an unknown step.
    """
    if step == "reference":
        check_tensors(REFERENCE_DTYPES, q=q, k_cache=k_cache, v_cache=v_cache)
        check_cache(q, k_cache, v_cache)
        check_table(q, table, lengths, len(q))
        check_pages(k_cache, table, lengths)
        return reference(q, k_cache, v_cache, table, lengths, scale=scale)
    from mlsys_lab.kernels.decode_attention import triton_steps

    return triton_steps.decode_attention(q, k_cache, v_cache, table, lengths, scale=scale, step=step)
