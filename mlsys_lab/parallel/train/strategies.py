"""Data parallelism and ZeRO under a model chunk: what its replicas keep, send and update, for each ZeRO stage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.models.training import BETAS, WEIGHT_DECAY
from mlsys_lab.parallel.buckets import Bucket
from mlsys_lab.parallel.data import DDP
from mlsys_lab.parallel.mesh import DeviceMesh
from mlsys_lab.parallel.zero import FSDP, ShardedDDP, ShardedOptimizer

BUCKET_BYTES = 2**20
ADAMW_KWARGS: dict[str, Any] = {"betas": BETAS, "weight_decay": WEIGHT_DECAY}


class ParameterShard:
    """This rank's slice of the flattened `bucket`: `parameter` holds its elements from `start` on."""

    def __init__(self, bucket: Bucket, parameter: nn.Parameter, group: Rank) -> None:
        self.bucket, self.parameter, self._group = bucket, parameter, group
        lengths = [len(chunk) for chunk in split_chunks(torch.empty(bucket.numel), group.size)]
        self.start = sum(lengths[: group.rank])

    def local_slice(self, flat: torch.Tensor) -> torch.Tensor:
        """This rank's slice of a tensor that has the flattened bucket's length."""
        return split_chunks(flat, self._group.size)[self._group.rank].view(self.parameter.shape)


class DataParallelStrategy(ABC):
    """A module replicated or sharded over a group, with its optimizer.

    `module` is what the pipeline calls, `shards` are what the optimizer updates on this rank. A step is: every backward
    pass within `backward_context`, then `finish_gradient_synchronization`, then `step`. Optimizers are elementwise.
    `keeps_full_weights` says whether every rank has all weights between steps.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    shards: list[ParameterShard]
    keeps_full_weights = True

    @contextmanager
    def backward_context(self, is_last: bool) -> Iterator[None]:
        """Context of a backward pass; `is_last` for the last one of a step."""
        yield

    @abstractmethod
    def finish_gradient_synchronization(self) -> None:
        """Leave the shards with mean gradients, summed over micro-batches, after the last backward pass."""

    @abstractmethod
    def step(self) -> None:
        """Update the shards, all-gather the new weights where ranks keep full ones, and free gradients."""


class DDPStrategy(DataParallelStrategy):
    """Every rank keeps and updates everything; gradients are all-reduced during the last backward pass."""

    def __init__(self, module: nn.Module, group: Rank) -> None:
        self.module = self._ddp = DDP(module, group, BUCKET_BYTES)
        own_group = group.group([group.rank])
        self.shards = [ParameterShard(Bucket([one]), one, own_group) for one in module.parameters()]
        self.optimizer = torch.optim.AdamW(module.parameters(), **ADAMW_KWARGS)

    @contextmanager
    def backward_context(self, is_last: bool) -> Iterator[None]:
        """Accumulate gradients until the last backward pass, which sends them."""
        if is_last:
            yield
        else:
            with self._ddp.no_sync():
                yield

    def finish_gradient_synchronization(self) -> None:
        """Wait for the all-reduces."""
        self._ddp.finish_gradient_synchronization()

    def step(self) -> None:
        """Update all parameters and free their gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()


class ZeRO1Strategy(DataParallelStrategy):
    """Gradients are accumulated in full and reduce-scattered once; weights are all-gathered after the update."""

    def __init__(self, module: nn.Module, group: Rank, tied_parameter: nn.Parameter | None) -> None:
        self.module, self._sharded = module, _shard_optimizer(module, group, tied_parameter)
        self.optimizer = self._sharded.optimizer
        self.shards = [ParameterShard(bucket, shard, group) for bucket, shard in self._sharded.bucket_shards]

    def finish_gradient_synchronization(self) -> None:
        """Reduce-scatter the gradients."""
        self._sharded.reduce_gradients()

    def step(self) -> None:
        """Update this rank's shards and all-gather the weights."""
        self._sharded.step()
        self._sharded.zero_grad()


class ZeRO2Strategy(ZeRO1Strategy):
    """Gradients are reduce-scattered in every backward pass, so that no rank keeps them in full."""

    def __init__(self, module: nn.Module, group: Rank, tied_parameter: nn.Parameter | None) -> None:
        super().__init__(module, group, tied_parameter)
        self.module = self._ddp = ShardedDDP(module, group, self._sharded)

    @contextmanager
    def backward_context(self, is_last: bool) -> Iterator[None]:
        """Reduce-scatter the gradients of this backward pass."""
        yield
        self._ddp.finish_gradient_synchronization()

    def finish_gradient_synchronization(self) -> None:
        """No-op: gradients were already reduce-scattered during backward."""


class ZeRO3Strategy(DataParallelStrategy):
    """FSDP: weights too are sharded, and gathered layer by layer while they are used."""

    keeps_full_weights = False

    def __init__(
        self,
        module: nn.Module,
        group: Rank,
        tied_parameter: nn.Parameter | None,
        ignored_params: Container[nn.Parameter] = (),
    ) -> None:
        self.module = self._fsdp = FSDP(module, group, tied_parameter=tied_parameter, ignored_params=ignored_params)
        self.shards = [ParameterShard(bucket, shard, group) for bucket, shard in self._fsdp.bucket_shards]
        self.optimizer = torch.optim.AdamW(self._fsdp.parameters(), **ADAMW_KWARGS)

    @contextmanager
    def backward_context(self, is_last: bool) -> Iterator[None]:
        """Reduce-scatter the gradients of this backward pass."""
        yield
        self._fsdp.finish_gradient_synchronization()

    def finish_gradient_synchronization(self) -> None:
        """No-op: gradients were already reduce-scattered during backward."""

    def step(self) -> None:
        """Update this rank's shards; the next forward pass gathers the new weights."""
        self.optimizer.step()
        self.optimizer.zero_grad()


def make_strategy(
    module: nn.Module, group: Rank, zero_stage: int, tied_parameter: nn.Parameter | None = None
) -> DataParallelStrategy:
    """The strategy of a ZeRO stage, 0 (DDP) to 3, for a module on the ranks of `group`.

    tied_parameter: the tied embedding, sharded separately so that first and last stage hold the same slices of it.
    """
    if zero_stage == 0:
        return DDPStrategy(module, group)
    strategies: dict[int, Callable[..., DataParallelStrategy]] = {1: ZeRO1Strategy, 2: ZeRO2Strategy, 3: ZeRO3Strategy}
    return strategies[zero_stage](module, group, tied_parameter)


class DataParallelChunk:
    """A module that a pipeline calls, with the strategies of its parameters: one, or two where it has experts.

    expert_parameters: parameters of experts, which are replicated over `mesh.expert_replica_group` only.
    tied_parameter: as in `make_strategy`.
    """

    def __init__(
        self,
        module: nn.Module,
        expert_parameters: set[nn.Parameter],
        mesh: DeviceMesh,
        zero_stage: int,
        tied_parameter: nn.Parameter | None,
    ) -> None:
        experts = [one for one in module.parameters() if one in expert_parameters]
        dense = [one for one in module.parameters() if one not in expert_parameters]
        groups = mesh.replica_group, mesh.expert_replica_group
        self.strategies: list[DataParallelStrategy]
        if not experts:
            self.strategies = [make_strategy(module, mesh.replica_group, zero_stage, tied_parameter)]
        elif zero_stage == 3:  # two units for each layer, which the layer's hooks gather and free
            self.strategies = [
                ZeRO3Strategy(module, groups[0], tied_parameter, ignored_params=set(experts)),
                ZeRO3Strategy(module, groups[1], None, ignored_params=set(dense)),
            ]
        else:
            self.strategies = [
                make_strategy(nn.ParameterList(dense), groups[0], zero_stage, tied_parameter),
                make_strategy(nn.ParameterList(experts), groups[1], zero_stage),
            ]
        self.module = module if experts else self.strategies[0].module

    @contextmanager
    def backward_context(self, is_last: bool) -> Iterator[None]:
        """Context of a backward pass through the chunk; `is_last` for the last one of a step."""
        with ExitStack() as stack:
            for strategy in self.strategies:
                stack.enter_context(strategy.backward_context(is_last))
            yield


def _shard_optimizer(module: nn.Module, group: Rank, tied_parameter: nn.Parameter | None) -> ShardedOptimizer:
    others = [one for one in module.parameters() if one is not tied_parameter]
    groups = [{"params": params} for params in (others, [] if tied_parameter is None else [tied_parameter]) if params]
    return ShardedOptimizer(groups, torch.optim.AdamW, group, bucket_bytes=BUCKET_BYTES, **ADAMW_KWARGS)
