"""Cost of attention: FLOPs, minimum bytes, and bytes that each step requests from global memory.

Letters: B batch, N query heads, K key/value heads, S queries, T keys, D head dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlsys_lab.flops import compute
from mlsys_lab.validation import require_at_least_one, require_grouped_heads, require_positive

LSE_BYTES = 4
"""Bytes of a query's log-sum-exp, and of a score of the naive step: float32."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one attention: batch, heads, queries, keys, head dimension, and whether it is causal."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    causal: bool = False

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("batch", "heads", "kv_heads", "queries", "keys", "head_dim")}
        require_at_least_one(**sizes)
        require_grouped_heads(self.heads, self.kv_heads)

    @property
    def pairs(self) -> float:
        """Number of pairs of a query and a visible key in one head."""
        queries = min(self.queries, self.keys) if self.causal else self.queries
        return compute.pairs(queries, self.keys - queries, causal=True) if self.causal else queries * self.keys

    @property
    def query_elements(self) -> int:
        """Number of elements of Q, which is also that of the output."""
        return self.batch * self.heads * self.queries * self.head_dim

    @property
    def key_elements(self) -> int:
        """Number of elements of K, which is also that of V."""
        return self.batch * self.kv_heads * self.keys * self.head_dim

    @property
    def lse_bytes(self) -> int:
        """Bytes of the log-sum-exp of all queries."""
        return self.batch * self.heads * self.queries * LSE_BYTES


def forward(shape: Shape, itemsize: int = 2) -> tuple[float, float]:
    """FLOPs (4·D per pair and head) and minimum bytes (Q, K, V and the output, each moved once) of the forward pass."""
    require_positive(itemsize=itemsize)
    flops = 4.0 * shape.batch * shape.heads * shape.head_dim * shape.pairs
    return flops, (2.0 * shape.query_elements + 2.0 * shape.key_elements) * itemsize


def backward(shape: Shape, itemsize: int = 2) -> tuple[float, float]:
    """FLOPs and minimum bytes of the backward pass: five products (scores, dV, dP, dQ, dK), 10·D per pair and head.

    This package's two kernels compute scores and dP twice: seven products. Minimum bytes: Q, K, V, the output, its
    gradient and the log-sum-exp are read, three gradients are written.
    """
    flops, _ = forward(shape, itemsize)
    return 2.5 * flops, (4.0 * shape.query_elements + 4.0 * shape.key_elements) * itemsize + shape.lse_bytes


def naive_bytes(shape: Shape, block_m: int, itemsize: int = 2) -> int:
    """Bytes that the naive step requests: scores moved four times, keys and values for each block of queries.

    There are S·T scores per head: a sequence twice as long moves four times as much.
    """
    require_positive(block_m=block_m, itemsize=itemsize)
    scores = shape.batch * shape.heads * shape.queries * shape.keys * LSE_BYTES
    keys = shape.batch * shape.heads * math.ceil(shape.queries / block_m) * shape.keys * shape.head_dim
    return 4 * scores + 2 * (keys + shape.query_elements) * itemsize + shape.lse_bytes


def flash_bytes(shape: Shape, block_m: int, block_n: int, itemsize: int = 2) -> int:
    """Bytes that the flash step requests: Q and output once, visible keys and values for each block of queries.

    About 2·D / `block_m` numbers per pair, so still quadratic in the length. But the same keys and values are loaded
    again, which the L2 cache serves; the scores of the naive step are all distinct.
    """
    require_positive(block_m=block_m, block_n=block_n, itemsize=itemsize)
    visible_keys = 0
    for first in range(0, shape.queries, block_m):
        end = shape.keys
        if shape.causal:
            end = min(end, max(0, first + block_m + shape.keys - shape.queries))
        visible_keys += min(shape.keys, math.ceil(end / block_n) * block_n)
    keys = shape.batch * shape.heads * visible_keys * shape.head_dim
    return 2 * (shape.query_elements + keys) * itemsize + shape.lse_bytes
