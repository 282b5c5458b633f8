"""ZeRO stage 3, fully sharded data parallelism: a layer's weights are gathered just before use and freed after it.

Zhao et al., arXiv:2304.11277. `FSDPUnit` is a group of parameters that is gathered and freed together, usually a layer;
`FSDP` runs the units with hooks on their modules. Gradients are reduce-scattered in buckets, as in stage 2.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import all_reduce_steps
from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.comm.collectives.reduce_scatter import all_gather, all_gather_steps, reduce_scatter_steps
from mlsys_lab.comm.collectives.rooted import broadcast
from mlsys_lab.comm.collectives.steps import InFlight, Steps
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.buckets import Bucket, BucketReducer, assign_buckets
from mlsys_lab.parallel.data.ddp import sync_frozen_params_and_buffers
from mlsys_lab.parallel.tags import Tag
from mlsys_lab.parallel.zero.optimizer import pop_gradients


class FSDPCollectives:
    """The collectives that carry weights and gradients: rings, in the tensors' own dtype."""

    def all_gather(self, group: Rank, shard: torch.Tensor) -> Steps[list[torch.Tensor]]:
        """Return all ranks' flat shards, in order of rank."""
        return all_gather_steps(group, shard, Tag.WEIGHTS)

    def reduce_scatter(self, group: Rank, gradients: torch.Tensor) -> Steps[torch.Tensor]:
        """Return this rank's chunk of the sum of all ranks' flat tensors."""
        return reduce_scatter_steps(group, gradients, Tag.GRADIENTS)


class FSDP(nn.Module):
    """A module with weights sharded over `group`; each layer's weights are unsharded only while they are used.

    `parameters()` are this rank's shards: pass those to any elementwise optimizer. Units are the entries of the
    module's ModuleLists; all other parameters form one more unit, which stays unsharded during the forward and the
    backward pass. All ranks start from rank 0's parameters and buffers; buffers that training changes are not
    synchronised. While one layer computes, the next one's weights are prefetched.

    compute_dtype: dtype of unsharded weights and their gradients; shards and accumulated gradients keep the parameters'
    dtype.
    replica_group: the ranks of other sharding groups with the same shards as this one (hybrid sharding, HSDP): weights
    then travel within `group`, gradients of shards also across replicas.
    tied_parameter: a tied embedding that another pipeline stage has too; it is a unit of its own, outside the
    ModuleLists, so that both stages hold the same slices of it.
    collectives: how weights and gradients are sent, `Int8Collectives` for ZeRO++.
    secondary_group: ranks, usually of one node, that keep a second sharded copy of the weights, from which the backward
    pass gathers (ZeRO++).
    ignored_params: parameters that are left as they are, such as experts, which another FSDP around the same module
    shards over other ranks.

    Modules return tensors, alone or in tuples, lists, mappings and dataclasses. Call
    `finish_gradient_synchronization()` between `backward()` and the optimizer's step, with several micro-batches after
    each of them. `peak_unsharded_bytes` is the largest size of weights unsharded or in flight at once. In
    torch: `fully_shard`; in DeepSpeed: stage 3.
    """

    module: nn.Module

    def __init__(
        self,
        module: nn.Module,
        group: Rank,
        compute_dtype: torch.dtype | None = None,
        replica_group: Rank | None = None,
        tied_parameter: nn.Parameter | None = None,
        collectives: FSDPCollectives | None = None,
        secondary_group: Rank | None = None,
        ignored_params: Container[nn.Parameter] = (),
    ) -> None:
        super().__init__()
        self._group, self._replica_group, self._collectives = group, replica_group, collectives or FSDPCollectives()
        for ranks in [group] if replica_group is None else [group, replica_group]:
            sync_frozen_params_and_buffers(module, ranks)
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._units = [
            FSDPUnit(owner, parameters, group, compute_dtype, self._collectives, secondary_group)
            for owner, parameters in find_units(module, tied_parameter, ignored_params)
        ]
        if replica_group is not None:
            for unit in self._units:
                unit.shard.data.copy_(broadcast(replica_group, unit.shard.data))
        self.__dict__["module"] = module  # not a submodule: its parameters are not what the optimizer updates
        self.shards = nn.ParameterList([unit.shard for unit in self._units])
        self.peak_unsharded_bytes = 0
        self._is_backward = False
        for index, unit in enumerate(self._units):
            self._register_hooks(index, unit)
        last_first = self._units[::-1]
        self._unit_of_bucket = {id(unit.bucket): unit for unit in last_first}
        self._reducer = BucketReducer([unit.bucket for unit in last_first], self._start_reduction)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module on this rank's part of the batch."""
        return self.module(*args, **kwargs)

    def train(self, mode: bool = True) -> FSDP:
        """Set the training mode of the module too; `to`, `apply` and `state_dict` see the shards only."""
        self.module.train(mode)
        return super().train(mode)

    @property
    def bucket_shards(self) -> list[tuple[Bucket, nn.Parameter]]:
        """Each unit's bucket, with this rank's shard of it."""
        return [(unit.bucket, unit.shard) for unit in self._units]

    def finish_gradient_synchronization(self) -> None:
        """Wait until this rank's shards have their mean gradients, added to those that they already had."""
        self._is_backward = False
        ranks = self._group.size * (1 if self._replica_group is None else self._replica_group.size)
        for bucket, total in self._reducer.finish():
            self._unit_of_bucket[id(bucket)].accumulate_gradient(total / ranks)

    def gather_full_params(self) -> dict[str, torch.Tensor]:
        """All-gather every trainable parameter, by name and in the shards' dtype."""
        full = {}
        for unit in self._units:
            flat = torch.cat(all_gather(self._group, unit.shard.detach()))
            for parameter, values in unit.bucket.split(flat):
                full[self._names[id(parameter)]] = values.clone()
        return {name: full[name] for name in self._names.values() if name in full}

    def _register_hooks(self, index: int, unit: FSDPUnit) -> None:
        """Unshard the unit before its module's forward and backward pass; reshard it after the forward pass."""

        def before_forward(*_: Any) -> None:
            is_last = index + 1 == len(self._units)
            self._unshard(index, None if is_last or self._is_backward else index + 1)

        def after_forward(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if self._is_backward:  # recomputation: the unit's backward pass follows
                return
            unit.reshard()
            for tensor in find_tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(before_backward)

        def before_backward(_gradient: torch.Tensor) -> None:
            self._is_backward = True
            is_root = unit.module is self.module
            self._unshard(index, len(self._units) - 1 if is_root else index - 1 if index else None)

        unit.module.register_forward_pre_hook(before_forward)
        unit.module.register_forward_hook(after_forward)

    def _unshard(self, index: int, prefetch_index: int | None) -> None:
        """Unshard a unit, and prefetch the one that is needed next."""
        self._units[index].unshard(is_backward=self._is_backward)
        if prefetch_index is not None:
            self._units[prefetch_index].prefetch(is_backward=self._is_backward)
        unsharded_bytes = sum(unit.unsharded_bytes for unit in self._units if unit.is_unsharded or unit.is_in_flight)
        self.peak_unsharded_bytes = max(self.peak_unsharded_bytes, unsharded_bytes)

    def _start_reduction(self, bucket: Bucket) -> InFlight[torch.Tensor]:
        """Free a unit's weights and gradients, and start to reduce-scatter its gradients."""
        self._unit_of_bucket[id(bucket)].reshard()
        return InFlight(self._reduce(pop_gradients(bucket)))

    def _reduce(self, gradients: torch.Tensor) -> Steps[torch.Tensor]:
        shard = yield from self._collectives.reduce_scatter(self._group, gradients)
        return (
            shard
            if self._replica_group is None
            else (yield from all_reduce_steps(self._replica_group, shard, Tag.GRADIENTS))
        )


class FSDPUnit:
    """Parameters of a module that are unsharded together; in between, this rank keeps only its `shard` of them.

    The shard has the parameters' original dtype, unsharded parameters have `compute_dtype`. With a `secondary_group`,
    its ranks keep shards of what the forward pass gathered, for the backward pass.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: list[nn.Parameter],
        group: Rank,
        compute_dtype: torch.dtype | None,
        collectives: FSDPCollectives,
        secondary_group: Rank | None,
    ) -> None:
        self.module, self._group, self._collectives = module, group, collectives
        self._secondary_group = secondary_group
        (bucket,) = assign_buckets(parameters, float("inf"))
        values = broadcast(group, bucket.read_values())
        self.shard = nn.Parameter(split_chunks(values, group.size)[group.rank].clone())
        for parameter in bucket.parameters:
            # Storage of its own, to be freed and allocated again.
            parameter.data = parameter.data.to(compute_dtype or bucket.dtype).clone()
        (self.bucket,) = assign_buckets(parameters, float("inf"))
        self._storage_bytes = [parameter.untyped_storage().nbytes() for parameter in self.bucket.parameters]
        self._in_flight: InFlight[list[torch.Tensor]] | None = None
        self._secondary_shard: torch.Tensor | None = None
        self.is_unsharded = True
        self.reshard()

    def prefetch(self, *, is_backward: bool) -> None:
        """Start to all-gather the parameters, unless they are unsharded or in flight."""
        if self.is_unsharded or self._in_flight is not None:
            return
        if is_backward and self._secondary_group is not None and self._secondary_shard is not None:
            self._in_flight = InFlight(
                all_gather_steps(self._secondary_group, self._secondary_shard, Tag.SECONDARY_WEIGHTS)
            )
        else:
            shard = self.shard.detach().to(self.bucket.dtype)
            self._in_flight = InFlight(self._collectives.all_gather(self._group, shard))

    def unshard(self, *, is_backward: bool) -> None:
        """Wait until the parameters are unsharded."""
        self.prefetch(is_backward=is_backward)
        if self._in_flight is not None:
            shards, self._in_flight = self._in_flight.wait(), None
            for parameter, size_bytes in zip(self.bucket.parameters, self._storage_bytes, strict=True):
                parameter.untyped_storage().resize_(size_bytes)
            values = torch.cat(shards)
            self.bucket.write_values(values)
            self.is_unsharded = True
            group = self._secondary_group
            if group is not None and not is_backward:
                self._secondary_shard = split_chunks(values, group.size)[group.rank].clone()

    def reshard(self) -> None:
        """Free the unsharded parameters; tensors that autograd saved are valid again after the next `unshard`."""
        for parameter in self.bucket.parameters:
            parameter.untyped_storage().resize_(0)
        self.is_unsharded = False

    def accumulate_gradient(self, gradient: torch.Tensor) -> None:
        """Add to the shard's gradient, in the shard's dtype."""
        gradient = gradient.to(self.shard.dtype)
        self.shard.grad = gradient if self.shard.grad is None else self.shard.grad + gradient

    @property
    def is_in_flight(self) -> bool:
        """Whether the parameters are being prefetched."""
        return self._in_flight is not None

    @property
    def unsharded_bytes(self) -> int:
        """Bytes of the unsharded parameters."""
        return sum(self._storage_bytes)


def find_units(
    module: nn.Module, tied_parameter: nn.Parameter | None = None, ignored_params: Container[nn.Parameter] = ()
) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """Units of a module in order of use: the module with its remaining parameters, then each entry of its ModuleLists.

    Only outermost ModuleLists count; entries that are containers themselves are replaced by their entries. A parameter
    of several entries belongs to the module, which is unsharded while they run. Frozen and ignored parameters belong to
    no unit.
    `tied_parameter`, a tied embedding, is a unit by itself. Raises InputError if a unit has several dtypes.
    """
    layers: dict[str, nn.Module] = {}
    for name, child in module.named_modules():
        if isinstance(child, nn.ModuleList) and _layer_of(f"{name}.", layers) is None:
            layers |= dict(_entries(name, child))
    owners: dict[nn.Parameter, set[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad and parameter not in ignored_params:
            owners.setdefault(parameter, set()).add(_layer_of(name, layers) or "")
    units: dict[str, list[nn.Parameter]] = {name: [] for name in ("", *layers)}
    for parameter, names in owners.items():
        units[next(iter(names)) if len(names) == 1 else ""].append(parameter)
    for name, parameters in units.items():
        if len(dtypes := {parameter.dtype for parameter in parameters}) > 1:
            got = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
            raise InputError("parameters of an FSDP unit have several dtypes", got=f"{got} in {name!r}")
    remaining = units.pop("")
    root = [
        ("", [one for one in remaining if one is not tied_parameter]),
        ("", [one for one in remaining if one is tied_parameter]),
    ]
    return [(layers.get(name, module), parameters) for name, parameters in [*root, *units.items()] if parameters]


def find_tensors(output: Any) -> Iterator[Any]:
    """Tensors that a module returns, in tuples, lists, mappings and dataclasses."""
    if torch.is_tensor(output):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from find_tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from find_tensors(value)
    elif is_dataclass(output):
        yield from find_tensors(vars(output))


def _entries(name: str, container: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules of a container's entries, containers replaced by their entries."""
    for key, entry in container.named_children():
        path = f"{name}.{key}".lstrip(".")
        if isinstance(entry, (nn.ModuleList, nn.ModuleDict)):
            yield from _entries(path, entry)
        else:
            yield path, entry


def _layer_of(name: str, layers: Iterable[str]) -> str | None:
    return next((layer for layer in layers if name.startswith(f"{layer}.")), None)
