"""Decode attention: one new query a sequence over a cache in pages.

reference   torch, sequence by sequence
whole       Triton, one program a sequence and key/value head
split       Triton, programs share a sequence and a second kernel merges
"""

from __future__ import annotations

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.arguments import check_integers, check_rank, check_shape, check_tensors
from mlsys_lab.kernels.attention import REFERENCE_DTYPES
from mlsys_lab.kernels.attention import reference as attention_reference
from mlsys_lab.validation import require_grouped_heads

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


def check_cache(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    """Raise InputError unless shapes are (any, N, D) and twice (pages, page size, K, D), with N a multiple of K."""
    check_rank(3, q=q)
    check_rank(4, k_cache=k_cache)
    check_shape(tuple(k_cache.shape), v_cache=v_cache)
    (_, N, D), (_, page, K, width) = q.shape, k_cache.shape
    if width != D or not D:
        raise InputError("width of heads", got=f"{D} and {width}", expected="the same, 1 or more")
    require_grouped_heads(N, K)
    if not page:
        raise InputError("tokens of a page", got=page, expected="1 or more")


def check_table(q: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, sequences: int) -> None:
    """Raise InputError unless `table` (sequences, any) and `lengths` (sequences,) are integers where `q` is."""
    check_integers(q, table=table, lengths=lengths)
    check_rank(2, table=table)
    check_shape((sequences, table.shape[1]), table=table)
    check_shape((sequences,), lengths=lengths)


def check_pages(k_cache: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor) -> None:
    """Raise InputError for lengths beyond the table and pages beyond the cache; waits for a GPU."""
    pages, page = k_cache.shape[:2]
    room = table.shape[1] * page
    if not bool(((lengths >= 0) & (lengths <= room)).all()):
        raise InputError("lengths", got=lengths.tolist(), expected=f"0 to {room}, what the table has room for")
    used = table[torch.arange(table.shape[1], device=table.device) * page < lengths[:, None]]
    if used.numel() and not 0 <= int(used.min()) <= int(used.max()) < pages:
        raise InputError("pages in the table", got=f"{int(used.min())} to {int(used.max())}", expected=f"below {pages}")


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
