"""Cost of decode attention from the sequences' lengths: FLOPs, least bytes, and what the kernels ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlsys_lab.validation import require_at_least_one, require_grouped_heads, require_non_negative, require_positive

FLOAT32 = 4  # bytes of a part's numbers, and of a log-sum-exp


def forward(lengths: Sequence[int], heads: int, kv_heads: int, width: int, itemsize: int = 2) -> tuple[float, float]:
    """FLOPs (4·D a key and query head) and least bytes (each cached key and value, query and output moved once).

    >>> forward([1000], heads=32, kv_heads=8, width=128)
    (16384000.0, 4112384.0)
    """
    require_at_least_one(heads=heads, kv_heads=kv_heads, width=width)
    require_positive(itemsize=itemsize)
    require_non_negative(lengths=min(lengths, default=0))
    require_grouped_heads(heads, kv_heads)
    tokens, ends = sum(lengths), 2 * len(lengths) * heads
    return 4.0 * tokens * heads * width, float((2 * tokens * kv_heads + ends) * width * itemsize)


def paged_bytes(
    lengths: Sequence[int],
    heads: int,
    kv_heads: int,
    width: int,
    *,
    parts: int = 1,
    block_n: int = 64,
    table_itemsize: int = 4,
    itemsize: int = 2,
) -> int:
    """Bytes that the kernels ask for: the least, a query again for each part, a table's entry a key and head.

    With more than one part, each part's output and log-sum-exp are written in float32, and read where it had keys.
    """
    require_at_least_one(parts=parts, block_n=block_n, table_itemsize=table_itemsize)
    _, least = forward(lengths, heads, kv_heads, width, itemsize)
    queries, programs = len(lengths) * heads, len(lengths) * kv_heads * parts
    asked = int(least) + (sum(lengths) * kv_heads + programs) * table_itemsize + queries * FLOAT32
    if parts > 1:
        shares = [math.ceil(math.ceil(length / parts) / block_n) * block_n for length in lengths]
        alive = sum(math.ceil(length / share) for length, share in zip(lengths, shares, strict=True) if share)
        asked += (parts - 1) * queries * width * itemsize
        asked += (queries * parts * (width + 2) + heads * alive * width) * FLOAT32
    return asked
