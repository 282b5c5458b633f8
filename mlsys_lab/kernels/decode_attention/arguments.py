"""Checks of decode attention's arguments: queries, a paged cache, its block table and the lengths in it."""

from __future__ import annotations

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.arguments import check_integers, check_rank, check_shape
from mlsys_lab.validation import require_grouped_heads


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
