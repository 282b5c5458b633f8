"""Counts of a run of the capstone: products where torch dispatches them, arrays where a rank sends or keeps them.

Dimension letters: B batch, N query heads, K key/value heads, T new tokens, S cached and new tokens, H head_dim, D
d_model, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from mlsys_lab.capstone.job import TrainJob
from mlsys_lab.capstone.sheet import GRADIENTS, LOSS, SCALARS, WEIGHTS
from mlsys_lab.capstone.swaps import replace_names
from mlsys_lab.comm import Rank
from mlsys_lab.comm.instrumentation import Phase, SentArray, record_phases
from mlsys_lab.models import Transformer


class count_products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count `flops` of the products that torch computes in the `with` block, and the seconds that they take.

    FLOPs are those of torch's own formulas (`torch.utils.flop_counter`). A product of two vectors, or a batch of them,
    is elementwise work, however it is written. While `is_paused`, nothing is counted.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops, self.time_s, self.is_paused = 0, 0.0, False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Always False: torch would otherwise import its compiler, for seconds, at the first operation."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one torch operation, in its parts if it has some; if it is a product, count it."""
        kwargs = kwargs or {}
        formula = flop_registry.get(func._overloadpacket)
        if formula is None:
            with self:
                parts = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if parts is NotImplemented else parts
        start = time.perf_counter()
        out = func(*args, **kwargs)
        if not self.is_paused and out.shape[-2:] != (1, 1):
            self.time_s += time.perf_counter() - start
            self.flops += formula(*args, **kwargs, out_val=out)
        return out


@dataclass
class RankCounts:
    """What a rank counted in one step: its products, the arrays that it sent by phase, and the bytes that it keeps."""

    flops: int = 0
    products_s: float = 0.0
    sent: list[SentArray] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)


def count_rank(rank: Rank, given: TrainJob) -> RankCounts:
    """Train one step as one rank, and count."""
    counts, phase = RankCounts(), Phase("setup")
    rank, counts.sent = record_phases(rank, phase)
    base = given.stack.data_parallel.ShardedOptimizer

    class CountingOptimizer(base):  # type: ignore[misc,valid-type]
        def __init__(self, params: Any, *args: Any, **options: Any) -> None:
            super().__init__(params, *args, **options)
            self.counted = list(params)
            phase.name = SCALARS

        def reduce_gradients(self) -> None:
            counts.kept["weight_bytes"] = sum(one.nbytes for one in self.counted)
            counts.kept["gradient_bytes"] = sum(one.grad.nbytes for one in self.counted if one.grad is not None)
            phase.name = GRADIENTS
            super().reduce_gradients()
            phase.name = SCALARS

        def step(self, *args: Any) -> None:
            phase.name = WEIGHTS
            super().step(*args)
            phase.name = SCALARS
            shards = [shard for group in self.optimizer.param_groups for shard in group["params"]]
            states = [one for state in self.optimizer.state.values() for one in state.values()]
            counts.kept["master_bytes"] = sum(shard.nbytes for shard in shards)
            counts.kept["optimizer_bytes"] = sum(one.nbytes for one in states if one.ndim)

    def all_reduce(*args: Any) -> Any:
        before, phase.name = phase.name, LOSS
        total = given.stack.collectives.all_reduce(*args)
        phase.name = before
        return total

    stack = replace_names(given.stack, "data_parallel", ShardedOptimizer=CountingOptimizer)
    stack = replace_names(stack, "collectives", all_reduce=all_reduce)
    with count_products() as products:
        given.stack.capstone.train_rank(rank, replace(given, stack=stack))
    counts.flops, counts.products_s = products.flops, products.time_s
    return counts


class CountingTransformer(Transformer):
    """A model that counts what an `extend` with one sequence of a cache computes and moves.

    Attention is counted by what goes in, since a layer may compute it by products, fused, or query by query: each of T
    queries meets all S keys of its sequence, masked or not. `head_flops` are those of the logits, `flops` the rest.
    """

    cache: Any
    sequence: int

    def reset(self, cache: Any, sequence: int) -> None:
        """Count from zero, for a sequence of a cache."""
        self.cache, self.sequence = cache, sequence
        self.flops = self.head_flops = self.read_bytes = self.written_bytes = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the products within."""
        with count_products() as self.products:
            yield
        self.flops += self.products.flops - self.head_flops

    def forward(self, tokens: torch.Tensor, *, attend: Any = None, **options: Any) -> torch.Tensor:
        """Logits of ids (B, T), as those of `Transformer`."""

        def counting(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            cached, new_bytes = (
                self.cache.length(self.sequence),
                k.nbytes + v.nbytes,
            )  # of q (B, N, T, H), k, v (B, K, T, H)
            self.written_bytes += new_bytes
            self.read_bytes += new_bytes // k.shape[2] * cached
            self.flops += 4 * q.numel() * (cached + k.shape[2])
            self.products.is_paused = True
            out = attend(layer, q, k, v)
            self.products.is_paused = False
            return out

        return super().forward(tokens, attend=counting, **options)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (..., V) of (..., D)."""
        before = self.products.flops
        logits = super().predict(x)
        self.head_flops += self.products.flops - before
        return logits
