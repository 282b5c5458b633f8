"""Decode attention: one new query a sequence over a cache in pages.

reference   torch, sequence by sequence
whole       Triton, one program a sequence and key/value head
split       Triton, programs share a sequence and a second kernel merges
"""

from __future__ import annotations

import torch

from mlsys_lab.kernels.attention import reference as attention_reference

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
    """(B, N, D), two caches (pages, page size, K, D), (B, pages), (B,) -> (B, N, D), written out in torch."""
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
    """(B, N, D) -> (B, N, D), by one of `STEPS`: each sequence's query over its first `lengths` cached tokens.

    The caches are (pages, page size, K, D); `table` (B, pages) says which pages hold a sequence, in order. Query head n
    attends with key/value head n // (N/K). `scale` is 1/√D by default. Raises InputError.
    """
    if step == "reference":
        return reference(q, k_cache, v_cache, table, lengths, scale=scale)
    from mlsys_lab.kernels.decode_attention import triton_steps

    return triton_steps.decode_attention(q, k_cache, v_cache, table, lengths, scale=scale, step=step)
