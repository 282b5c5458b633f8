"""ZeRO stage 3, fully sharded data parallelism: a layer's weights are gathered just before they are used, then freed.

Zhao et al., arXiv:2304.11277. Gradients go as in stage 2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.rooted import broadcast_tree
from mlsys_lab.comm.collectives.scattered import all_gather_ring
from mlsys_lab.comm.collectives.steps import InFlight
from mlsys_lab.parallel.buckets import BucketReducer
from mlsys_lab.parallel.data.averaging import sync_untrained_states
from mlsys_lab.parallel.flat import FlatParameters
from mlsys_lab.parallel.sharded.gradients import send_off
from mlsys_lab.parallel.sharded.transport import ZeroCollectives
from mlsys_lab.parallel.sharded.unit import Unit, divide, find_tensors


class FSDP(nn.Module):
    """A module whose weights are divided over the ranks of `group`, and whole only layer by layer while they are used.

    `parameters()` are this rank's shards: give those to an optimiser of any kind that treats each element by itself.
    Layers are the entries of the module's ModuleLists; all else is one unit, whole during forward and during backward.
    All ranks begin with rank 0's parameters and buffers; buffers that change in training are each rank's own. While a
    layer computes, the next one's weights are on their way.

    compute_dtype: what whole weights and their gradients are in; shards, and what they add up, keep the dtype that
    the parameters had. replicas: the ranks that keep the same shards as this one, in other groups (hybrid sharding):
    weights then travel within a group, and gradients of shards between groups too. alone: a parameter of no layer that
    is divided by itself, so that ranks with another module that has it too keep equal shards of it.

    transport: how weights and gradients travel, as they are or in 8 bits. near: neighbours, such as those of a node,
    that keep a second copy of the weights among them, from which the backward pass gathers. With both it is ZeRO++.

    Modules return tensors, alone or in tuples, lists, mappings and dataclasses. Between `backward()` and the
    optimiser's step call `finish_gradient_synchronization()`; with several micro-batches after each of them.
    `peak_bytes` are those of weights that were whole at once. In torch: `fully_shard`; in DeepSpeed: stage 3.
    """

    module: nn.Module

    def __init__(
        self,
        module: nn.Module,
        group: Rank,
        compute_dtype: torch.dtype | None = None,
        replicas: Rank | None = None,
        alone: nn.Parameter | None = None,
        transport: ZeroCollectives | None = None,
        near: Rank | None = None,
    ) -> None:
        super().__init__()
        self._group, self._replicas, self._transport = group, replicas, transport or ZeroCollectives()
        for ranks in [group] if replicas is None else [group, replicas]:
            sync_untrained_states(module, ranks)
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._units = [
            Unit(owner, parameters, group, compute_dtype, self._transport, near)
            for owner, parameters in divide(module, alone)
        ]
        if replicas is not None:
            for unit in self._units:
                unit.shard.data.copy_(broadcast_tree(replicas, unit.shard.data))
        self.__dict__["module"] = module  # no submodule: its parameters are not what an optimiser updates
        self.shards = nn.ParameterList([unit.shard for unit in self._units])
        self.peak_bytes = 0
        self._is_backward = False
        for number, unit in enumerate(self._units):
            self._watch(number, unit)
        last_first = self._units[::-1]
        self._by_bucket = {id(unit.flat): unit for unit in last_first}
        self._queue = BucketReducer([unit.flat for unit in last_first], self._send_off)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module on this rank's part of the batch."""
        return self.module(*args, **kwargs)

    @property
    def units(self) -> list[tuple[FlatParameters, nn.Parameter]]:
        """Parameters that are gathered together, with this rank's shard of them, unit by unit."""
        return [(unit.flat, unit.shard) for unit in self._units]

    def finish_gradient_synchronization(self) -> None:
        """Wait until this rank's shards have their mean gradients, added to those that they had."""
        self._is_backward = False
        ranks = self._group.size * (1 if self._replicas is None else self._replicas.size)
        for bucket, total in self._queue.finish():
            self._by_bucket[id(bucket)].add_gradient(total / ranks)

    def gather_full_params(self) -> dict[str, torch.Tensor]:
        """Return every parameter that is trained, whole and in the shards' dtype, by its name; on every rank."""
        whole = {}
        for unit in self._units:
            flat = torch.cat(all_gather_ring(self._group, unit.shard.detach()))
            for parameter, values in unit.flat.divide(flat):
                whole[self._names[id(parameter)]] = values.clone()
        return {name: whole[name] for name in self._names.values() if name in whole}

    def _watch(self, number: int, unit: Unit) -> None:
        """Gather the unit before its module runs, forward and backward; free it behind the forward pass."""

        def enter(*_: Any) -> None:
            is_last = number + 1 == len(self._units)
            self._gather(number, None if is_last or self._is_backward else number + 1)

        def leave(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if self._is_backward:  # recomputed: the backward pass through it comes now
                return
            unit.free()
            for tensor in find_tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(enter_backward)

        def enter_backward(_gradient: torch.Tensor) -> None:
            self._is_backward = True
            is_outermost = unit.module is self.module
            self._gather(number, len(self._units) - 1 if is_outermost else number - 1 if number else None)

        unit.module.register_forward_pre_hook(enter)
        unit.module.register_forward_hook(leave)

    def _gather(self, number: int, soon: int | None) -> None:
        """Make a unit whole, and start on the one that is needed next."""
        self._units[number].gather(is_backward=self._is_backward)
        if soon is not None:
            self._units[soon].prefetch(is_backward=self._is_backward)
        self.peak_bytes = max(self.peak_bytes, sum(unit.size_bytes for unit in self._units if unit.is_whole))

    def _send_off(self, bucket: FlatParameters) -> InFlight[torch.Tensor]:
        self._by_bucket[id(bucket)].free()
        return send_off(bucket, self._group, self._replicas, self._transport)
