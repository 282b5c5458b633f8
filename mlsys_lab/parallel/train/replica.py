"""A stage of a model on ranks that hold the same parameters: what they keep and send, by stage of ZeRO."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.models.training import BETAS, WEIGHT_DECAY
from mlsys_lab.parallel.data import DDP
from mlsys_lab.parallel.flat import FlatParameters
from mlsys_lab.parallel.sharded import FSDP, ShardedDDP, ShardedOptimizer

BUCKET_BYTES = 2**20
ADAM: dict[str, Any] = {"betas": BETAS, "weight_decay": WEIGHT_DECAY}


class ParameterShard:
    """What this rank's optimiser updates of some parameters laid end to end: `shard` has elements from `start` on."""

    def __init__(self, flat: FlatParameters, shard: nn.Parameter, group: Rank) -> None:
        self.flat, self.shard, self._group = flat, shard, group
        lengths = [len(chunk) for chunk in split_chunks(torch.empty(flat.numel), group.size)]
        self.start = sum(lengths[: group.rank])

    def cut(self, flat: torch.Tensor) -> torch.Tensor:
        """Take this rank's part of an array with a number for each element of the parameters; like the shard."""
        return split_chunks(flat, self._group.size)[self._group.rank].view(self.shard.shape)


class DataParallelStrategy(ABC):
    """A module, its optimiser, and when mean gradients travel among the ranks of a group.

    `module` is what a pipeline calls, `shares` are what the optimiser updates here. A step is: every backward pass
    within `backward_context`, then `finish`, then `step`. Optimisers treat each element by itself. `keeps_weights` says
    whether each rank has all weights between steps.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    shares: list[ParameterShard]
    keeps_weights = True

    @contextmanager
    def backward_context(self, is_last: bool) -> Iterator[None]:
        """Context manager around a backward pass, the last of a step where `is_last`."""
        yield

    @abstractmethod
    def finish(self) -> None:
        """Let the shards have their mean gradients, summed over micro-batches, once all backward passes are done."""

    @abstractmethod
    def step(self) -> None:
        """Update, let every rank have what it needs of it, and forget gradients."""


class DDPStrategy(DataParallelStrategy):
    """Every rank keeps and updates everything: gradients are all-reduced while the last backward pass goes on."""

    def __init__(self, stage: nn.Module, group: Rank) -> None:
        self.module = self._ddp = DDP(stage, group, BUCKET_BYTES)
        alone = group.group([group.rank])
        self.shares = [ParameterShard(FlatParameters([one]), one, alone) for one in stage.parameters()]
        self.optimizer = torch.optim.AdamW(stage.parameters(), **ADAM)

    @contextmanager
    def backward_context(self, is_last: bool) -> Iterator[None]:
        """Add gradients up until the last backward pass, which sends their sums."""
        if is_last:
            yield
        else:
            with self._ddp.no_sync():
                yield

    def finish(self) -> None:
        """Wait for the all-reduces."""
        self._ddp.finish_gradient_synchronization()

    def step(self) -> None:
        """Update all parameters, and forget their gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()


class ZeRO1Strategy(DataParallelStrategy):
    """ZeRO 1: gradients are added up whole, reduce-scattered once, and weights gathered after the update."""

    def __init__(self, stage: nn.Module, group: Rank, alone: nn.Parameter | None) -> None:
        self.module, self._sharded = stage, _divide_states(stage, group, alone)
        self.optimizer = self._sharded.optimizer
        self.shares = [ParameterShard(flat, shard, group) for flat, shard in self._sharded.shards]

    def finish(self) -> None:
        """Reduce-scatter the gradients."""
        self._sharded.reduce_gradients()

    def step(self) -> None:
        """Update this rank's shards and gather everybody's weights."""
        self._sharded.step()
        self._sharded.zero_grad()


class ZeRO2Strategy(ZeRO1Strategy):
    """ZeRO 2: gradients are reduce-scattered in each backward pass, so that nobody has them whole."""

    def __init__(self, stage: nn.Module, group: Rank, alone: nn.Parameter | None) -> None:
        super().__init__(stage, group, alone)
        self.module = self._ddp = ShardedDDP(stage, group, self._sharded)

    @contextmanager
    def backward_context(self, is_last: bool) -> Iterator[None]:
        """Reduce-scatter this backward pass's gradients."""
        yield
        self._ddp.finish_gradient_synchronization()

    def finish(self) -> None:
        """Nothing is left to do."""


class ZeRO3Strategy(DataParallelStrategy):
    """ZeRO 3: weights too are whole only while they are used."""

    keeps_weights = False

    def __init__(self, stage: nn.Module, group: Rank, alone: nn.Parameter | None) -> None:
        self.module = self._fsdp = FSDP(stage, group, alone=alone)
        self.shares = [ParameterShard(flat, shard, group) for flat, shard in self._fsdp.units]
        self.optimizer = torch.optim.AdamW(self._fsdp.parameters(), **ADAM)

    @contextmanager
    def backward_context(self, is_last: bool) -> Iterator[None]:
        """Reduce-scatter this backward pass's gradients."""
        yield
        self._fsdp.finish_gradient_synchronization()

    def finish(self) -> None:
        """Nothing is left to do."""

    def step(self) -> None:
        """Update this rank's shards, which is all that there is."""
        self.optimizer.step()
        self.optimizer.zero_grad()


def make_strategy(
    stage: nn.Module, group: Rank, zero_stage: int, alone: nn.Parameter | None = None
) -> DataParallelStrategy:
    """The replica of a piece of a model on the ranks of `group`, by stage of ZeRO, 0 to 3.

    alone: a parameter that is divided by itself, so that ranks with another piece that has it keep equal shards of it.
    """
    if zero_stage == 0:
        return DDPStrategy(stage, group)
    kinds: dict[int, Callable[..., DataParallelStrategy]] = {1: ZeRO1Strategy, 2: ZeRO2Strategy, 3: ZeRO3Strategy}
    return kinds[zero_stage](stage, group, alone)


def _divide_states(stage: nn.Module, group: Rank, alone: nn.Parameter | None) -> ShardedOptimizer:
    rest = [one for one in stage.parameters() if one is not alone]
    groups = [{"params": some} for some in (rest, [alone] if alone is not None else []) if some]
    return ShardedOptimizer(groups, torch.optim.AdamW, group, bucket_bytes=BUCKET_BYTES, **ADAM)
