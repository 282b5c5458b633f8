"""Cost of paged decode attention by sequence lengths: FLOPs, minimum bytes, and bytes that the kernels request."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlsys_lab.validation import require_at_least_one, require_grouped_heads, require_non_negative, require_positive

FLOAT32 = 4  # bytes of a split's numbers, and of a log-sum-exp


def forward(
    seq_lens: Sequence[int], heads: int, kv_heads: int, head_dim: int, itemsize: int = 2
) -> tuple[float, float]:
    """FLOPs (4·D per key and query head) and minimum bytes (each cached key and value, query and output moved once).

    >>> forward([1000], heads=32, kv_heads=8, head_dim=128)
    (16384000.0, 4112384.0)
    """
    require_at_least_one(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    require_positive(itemsize=itemsize)
    require_non_negative(seq_lens=min(seq_lens, default=0))
    require_grouped_heads(heads, kv_heads)
    tokens, ends = sum(seq_lens), 2 * len(seq_lens) * heads
    return 4.0 * tokens * heads * head_dim, float((2 * tokens * kv_heads + ends) * head_dim * itemsize)


def paged_bytes(
    seq_lens: Sequence[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    num_splits: int = 1,
    block_n: int = 64,
    table_itemsize: int = 4,
    itemsize: int = 2,
) -> int:
    """Bytes that the kernels request: the minimum, a query once more per split, a block-table entry per key and head.

    With more than one split, each one's output and log-sum-exp are stored in float32, and loaded if it had keys.
    """
    require_at_least_one(num_splits=num_splits, block_n=block_n, table_itemsize=table_itemsize)
    _, minimum = forward(seq_lens, heads, kv_heads, head_dim, itemsize)
    queries, programs = len(seq_lens) * heads, len(seq_lens) * kv_heads * num_splits
    requested = int(minimum) + (sum(seq_lens) * kv_heads + programs) * table_itemsize + queries * FLOAT32
    if num_splits > 1:
        split_sizes = [math.ceil(math.ceil(length / num_splits) / block_n) * block_n for length in seq_lens]
        non_empty = sum(math.ceil(length / size) for length, size in zip(seq_lens, split_sizes, strict=True) if size)
        requested += (num_splits - 1) * queries * head_dim * itemsize
        requested += (queries * num_splits * (head_dim + 2) + heads * non_empty * head_dim) * FLOAT32
    return requested
