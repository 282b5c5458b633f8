"""Cost of attention for a ragged batch over pages: FLOPs, least bytes, and what the kernel asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlsys_lab.flops.compute import pairs
from mlsys_lab.validation import require_at_least_one, require_grouped_heads, require_non_negative, require_positive

Part = tuple[int, int]
"""New tokens of a sequence, each a query, and the tokens before them that are in the cache already."""


def forward(
    parts: Sequence[Part], heads: int, kv_heads: int, width: int, *, window: int | None = None, itemsize: int = 2
) -> tuple[float, float]:
    """FLOPs (4·D a pair and query head) and least bytes (keys and values that are seen, queries and outputs, once).

    >>> forward([(1, 999), (4, 0)], heads=32, kv_heads=8, width=128)
    (16547840.0, 4194304.0)
    """
    require_at_least_one(heads=heads, kv_heads=kv_heads, width=width)
    require_positive(itemsize=itemsize)
    require_grouped_heads(heads, kv_heads)
    seen = sum(keys for new, past in parts for keys in _keys(new, past, max(1, new), window))
    all_pairs = sum(pairs(new, past, causal=True, window=window) for new, past in parts)
    ends = 2 * heads * sum(new for new, _ in parts)
    return 4.0 * all_pairs * heads * width, float((2 * seen * kv_heads + ends) * width * itemsize)


def packed_bytes(
    parts: Sequence[Part],
    heads: int,
    kv_heads: int,
    width: int,
    *,
    queries: int,
    window: int | None = None,
    index_itemsize: int = 4,
    itemsize: int = 2,
) -> int:
    """Bytes that the kernel asks for: queries and outputs once, and for each tile of `queries` the keys that it sees.

    With each key a table's entry of `index_itemsize`; each program, idle ones too, looks for its sequence among the
    starts of all, then reads its length, its start and the next. A whole prompt cut into tiles reads its beginning
    again for each of them: 2·D·K/`queries` numbers a pair.
    """
    require_at_least_one(queries=queries, index_itemsize=index_itemsize)
    forward(parts, heads, kv_heads, width, window=window, itemsize=itemsize)
    tokens = sum(new for new, _ in parts)
    seen = kv_heads * sum(keys for new, past in parts for keys in _keys(new, past, queries, window))
    programs = kv_heads * (tokens // queries + len(parts)) if tokens else 0
    indices = seen + programs * (len(parts) + 3)
    return 2 * (tokens * heads + seen) * width * itemsize + indices * index_itemsize


def _keys(new: int, past: int, queries: int, window: int | None) -> Iterator[int]:
    """Number of keys that each tile of a sequence's queries sees: its first query's first to the last one's own."""
    require_non_negative(new=new, past=past)
    for first in range(0, new, queries):
        begin = 0 if window is None else max(0, past + first - window + 1)
        yield past + min(first + queries, new) - begin
