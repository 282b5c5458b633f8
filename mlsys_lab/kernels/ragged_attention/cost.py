"""Cost of paged attention for a ragged batch: FLOPs, minimum bytes, and bytes that the kernel requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlsys_lab.flops.compute import pairs
from mlsys_lab.validation import require_at_least_one, require_grouped_heads, require_non_negative, require_positive

Extent = tuple[int, int]
"""New tokens of a sequence (one query each), and the tokens before them that are in the cache already."""


def forward(
    extents: Sequence[Extent], heads: int, kv_heads: int, head_dim: int, *, window: int | None = None, itemsize: int = 2
) -> tuple[float, float]:
    """FLOPs (4·D per pair and query head) and minimum bytes (visible keys and values, queries and outputs, each once).

    >>> forward([(1, 999), (4, 0)], heads=32, kv_heads=8, head_dim=128)
    (16547840.0, 4194304.0)
    """
    require_at_least_one(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    require_positive(itemsize=itemsize)
    require_grouped_heads(heads, kv_heads)
    visible = sum(keys for new, past in extents for keys in _keys(new, past, max(1, new), window))
    all_pairs = sum(pairs(new, past, causal=True, window=window) for new, past in extents)
    ends = 2 * heads * sum(new for new, _ in extents)
    return 4.0 * all_pairs * heads * head_dim, float((2 * visible * kv_heads + ends) * head_dim * itemsize)


def packed_bytes(
    extents: Sequence[Extent],
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    queries: int,
    window: int | None = None,
    index_itemsize: int = 4,
    itemsize: int = 2,
) -> int:
    """Bytes that the kernel requests: queries and outputs once, and for each tile of `queries` its visible keys.

    Each key takes a block-table entry of `index_itemsize`. Each program, idle ones too, searches all query starts for
    its sequence, then loads its length, its start and the next. Every tile of a prompt loads the prompt's first keys
    again: 2·D·K/`queries` numbers per pair.
    """
    require_at_least_one(queries=queries, index_itemsize=index_itemsize)
    forward(extents, heads, kv_heads, head_dim, window=window, itemsize=itemsize)
    tokens = sum(new for new, _ in extents)
    visible = kv_heads * sum(keys for new, past in extents for keys in _keys(new, past, queries, window))
    programs = kv_heads * (tokens // queries + len(extents)) if tokens else 0
    indices = visible + programs * (len(extents) + 3)
    return 2 * (tokens * heads + visible) * head_dim * itemsize + indices * index_itemsize


def _keys(new: int, past: int, queries: int, window: int | None) -> Iterator[int]:
    """Number of keys visible to each tile of a sequence's queries: the first query's first to the last query's own."""
    require_non_negative(new=new, past=past)
    for first in range(0, new, queries):
        begin = 0 if window is None else max(0, past + first - window + 1)
        yield past + min(first + queries, new) - begin
