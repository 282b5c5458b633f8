"""Ragged paged attention compiled for the CPU by Numba: a query reads its sequence's cache blocks in place.

Letters: B sequences, Q queries of all of them, N query heads, K KV heads, D head dimension, T tokens of a sequence.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.arguments import check_contiguous
from mlsys_lab.kernels.runtime import compile_for_cpu

DTYPES = (torch.float32, torch.float64)
"""dtypes that NumPy has and a CPU computes in."""
MAX_QUERIES = 8
"""Most queries of a sequence that read the blocks in place; with more, matrix products repay a copy of the keys."""


def check_compiled(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    """Raise InputError for tensors that are not contiguous, of other dtypes than `DTYPES`, or not on the CPU."""
    if check_contiguous(DTYPES, q=q, k_cache=k_cache, v_cache=v_cache).type != "cpu":
        raise InputError("the compiled step runs on a CPU", got=q.device, help='step="packed"')


def warm_up(dtype: torch.dtype) -> None:
    """Compile for a dtype, or load the machine code that an earlier process has cached."""
    q, caches = torch.ones(1, 1, 1, dtype=dtype), torch.ones(2, 1, 1, 1, 1, dtype=dtype)
    where = (torch.tensor(values, dtype=torch.int32) for values in ([[0]], [1], [0, 1]))
    compiled(q, *caches, *where)


def compiled(*batch: Tensor, window: int | None = None, scale: float | None = None) -> Tensor:
    """Attention of a ragged batch on the CPU, without padding; the tensors are those of `ragged_attention`.

    The first call compiles for about two seconds, unless an earlier process has left its machine code in Numba's cache.
    """
    q, k_cache, v_cache, *where = batch
    return CompiledBatch(*where, window=window, scale=scale)(q, k_cache, v_cache)


class CompiledBatch:
    """A ragged batch that attends in every layer of a model: what is the same in all of them is prepared once."""

    def __init__(
        self,
        block_table: Tensor,
        seq_lens: Tensor,
        query_start_loc: Tensor,
        *,
        window: int | None = None,
        scale: float | None = None,
    ) -> None:
        self.block_table, self.lengths, self.starts = block_table, seq_lens.tolist(), query_start_loc.tolist()
        self.window, self.scale = window, scale
        counts = [end - start for start, end in pairwise(self.starts)]
        self.copied = [b for b, count in enumerate(counts) if count > MAX_QUERIES]
        self.is_all_copied, self.longest = len(self.copied) == len(counts), max(self.lengths, default=0)
        self._where = *(x.numpy() for x in (block_table, seq_lens, query_start_loc)), window or 0, MAX_QUERIES

    def __call__(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """Attention of queries (Q, N, D) over contiguous caches (num_blocks, block_size, K, D): (Q, N, D)."""
        scale = 1 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale
        q = q.contiguous() * scale  # other strides would be compiled again, to code that is not vectorised
        out = torch.empty_like(q)
        if not self.is_all_copied:
            scores = q.new_full((*q.shape[:2], self.longest), -math.inf)  # (Q, N, T)
            _score(q.numpy(), k_cache.numpy(), *self._where, scores.numpy())
            _average(scores.softmax(-1).numpy(), v_cache.numpy(), *self._where, out.numpy())
        for b in self.copied:
            rows = slice(self.starts[b], self.starts[b + 1])
            blocks, length = self.block_table[b], self.lengths[b]
            out[rows] = _attend_copied(q[rows], k_cache, v_cache, blocks, length, self.window)
        return out


def _attend_copied(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, blocks: Tensor, length: int, window: int | None
) -> Tensor:
    """Attention of one sequence's scaled queries (Q, N, D) in torch, over a copy of its keys and values."""
    used = blocks[: -(-length // k_cache.shape[1])].long()
    k, v = (cache[used].flatten(0, 1)[:length].transpose(0, 1) for cache in (k_cache, v_cache))  # (K, T, D)
    keys, mask = torch.arange(length), None
    if len(q) < length or window is not None:
        queries = keys[length - len(q) :, None]
        mask = keys <= queries if window is None else (keys <= queries) & (keys > queries - window)
    heads = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k[None], v[None], mask, is_causal=mask is None, scale=1.0, enable_gqa=True
    )  # (1, N, Q, D)
    return heads[0].transpose(0, 1)


@compile_for_cpu
def _score(
    q: Any, k_cache: Any, block_table: Any, seq_lens: Any, starts: Any, window: int, max_queries: int, scores: Any
) -> None:
    """Write the products of queries and keys to `scores` (Q, N, T), for sequences with up to `max_queries` queries.

    `window` 0 is none. Scores of tokens that a query does not attend to keep their values.
    """
    (N, D), (num_blocks, block_size, K) = q.shape[1:], k_cache.shape[:3]
    keys, group = k_cache.reshape(num_blocks * block_size, K, D), N // K
    for b in range(len(seq_lens)):
        first, end = starts[b], starts[b + 1]
        for i in range(first, end if end - first <= max_queries else first):
            length = seq_lens[b] - (end - 1 - i)
            start = max(0, length - window) if window else 0
            for block in range(start // block_size, (length + block_size - 1) // block_size):
                for position in range(max(start, block * block_size), min(length, (block + 1) * block_size)):
                    slot = (block_table[b, block] - block) * block_size + position
                    for kv_head in range(K):
                        key = keys[slot, kv_head]
                        for n in range(kv_head * group, (kv_head + 1) * group):
                            query, score = q[i, n], q.dtype.type(0)
                            for d in range(D):
                                score += query[d] * key[d]
                            scores[i, n, position] = score


@compile_for_cpu
def _average(
    weights: Any, v_cache: Any, block_table: Any, seq_lens: Any, starts: Any, window: int, max_queries: int, out: Any
) -> None:
    """Write the averages of values by `weights` (Q, N, T) to `out` (Q, N, D), for the sequences of `_score`."""
    (N, D), (num_blocks, block_size, K) = out.shape[1:], v_cache.shape[:3]
    values, group = v_cache.reshape(num_blocks * block_size, K, D), N // K
    for b in range(len(seq_lens)):
        first, end = starts[b], starts[b + 1]
        for i in range(first, end if end - first <= max_queries else first):
            length = seq_lens[b] - (end - 1 - i)
            for n in range(N):
                for d in range(D):
                    out[i, n, d] = 0
            start = max(0, length - window) if window else 0
            for block in range(start // block_size, (length + block_size - 1) // block_size):
                for position in range(max(start, block * block_size), min(length, (block + 1) * block_size)):
                    slot = (block_table[b, block] - block) * block_size + position
                    for kv_head in range(K):
                        value = values[slot, kv_head]
                        for n in range(kv_head * group, (kv_head + 1) * group):
                            output, weight = out[i, n], weights[i, n, position]
                            for d in range(D):
                                output[d] += weight * value[d]
