"""A unit of FSDP: the parameters that are gathered, used and freed together, usually those of a layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.comm.collectives.rooted import broadcast_tree
from mlsys_lab.comm.collectives.scattered import all_gather_steps
from mlsys_lab.comm.collectives.steps import InFlight
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.flat import assign_buckets
from mlsys_lab.parallel.sharded.transport import ZeroCollectives

SECONDARY_WEIGHTS = "weights among near ranks"
"""The purpose with which the ledger counts weights that near ranks gather from each other."""


class Unit:
    """Some parameters of a module, whole only while it is used; between times this rank keeps a `shard` of them.

    The shard has the dtype that the parameters had; whole ones have `compute_dtype`. Where there is a group `near`, its
    ranks divide among themselves what the forward pass gathered, for the backward pass.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: list[nn.Parameter],
        group: Rank,
        compute_dtype: torch.dtype | None,
        transport: ZeroCollectives,
        near: Rank | None,
    ) -> None:
        self.module, self._group, self._transport, self._near = module, group, transport, near
        self._near_shard: torch.Tensor | None = None
        (flat,) = assign_buckets(parameters, float("inf"))
        whole = broadcast_tree(group, flat.read_values())
        self.shard = nn.Parameter(split_chunks(whole, group.size)[group.rank].clone())
        for parameter in flat.parameters:
            # Storage of its own, to free and to fill again.
            parameter.data = parameter.data.to(compute_dtype or flat.dtype).clone()
        (self.flat,) = assign_buckets(parameters, float("inf"))
        self._sizes = [parameter.untyped_storage().nbytes() for parameter in self.flat.parameters]
        self._coming: InFlight[list[torch.Tensor]] | None = None
        self.is_whole = True
        self.free()

    def prefetch(self, *, is_backward: bool) -> None:
        """Start to gather the parameters, unless they are whole or on their way."""
        if self.is_whole or self._coming is not None:
            return
        if is_backward and self._near is not None and self._near_shard is not None:
            self._coming = InFlight(all_gather_steps(self._near, self._near_shard, SECONDARY_WEIGHTS))
        else:
            part = self.shard.detach().to(self.flat.dtype)
            self._coming = InFlight(self._transport.gather(self._group, part))

    def gather(self, *, is_backward: bool) -> None:
        """Wait until the parameters are whole."""
        self.prefetch(is_backward=is_backward)
        if self._coming is not None:
            parts, self._coming = self._coming.wait(), None
            for parameter, size_bytes in zip(self.flat.parameters, self._sizes, strict=True):
                parameter.untyped_storage().resize_(size_bytes)
            whole = torch.cat(parts)
            self.flat.write_values(whole)
            self.is_whole = True
            if self._near is not None and not is_backward:
                self._near_shard = split_chunks(whole, self._near.size)[self._near.rank].clone()

    def free(self) -> None:
        """Give the memory of the whole parameters back; arrays that autograd keeps are filled again by `gather`."""
        for parameter in self.flat.parameters:
            parameter.untyped_storage().resize_(0)
        self.is_whole = False

    def add_gradient(self, gradient: torch.Tensor) -> None:
        """Add to the shard's gradient, in the shard's dtype."""
        gradient = gradient.to(self.shard.dtype)
        self.shard.grad = gradient if self.shard.grad is None else self.shard.grad + gradient

    @property
    def size_bytes(self) -> int:
        """Bytes of the parameters when they are whole."""
        return sum(self._sizes)


def divide(module: nn.Module, alone: nn.Parameter | None = None) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """Units of a module in order of use: itself with what is left over, then each entry of its outermost ModuleLists.

    Entries that are containers themselves, which nobody calls, give way to their own entries.
    A parameter that several entries use belongs to the module itself, which is whole while they are used. Parameters
    that are not trained belong to no unit. `alone`, one of the module's own, has a unit to itself. Raises InputError
    where a unit's parameters are not of one dtype.
    """
    layers: dict[str, nn.Module] = {}
    for name, child in module.named_modules():
        if isinstance(child, nn.ModuleList) and _layer_of(f"{name}.", layers) is None:
            layers |= dict(_entries(name, child))
    owners: dict[nn.Parameter, set[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            owners.setdefault(parameter, set()).add(_layer_of(name, layers) or "")
    units: dict[str, list[nn.Parameter]] = {name: [] for name in ("", *layers)}
    for parameter, names in owners.items():
        units[next(iter(names)) if len(names) == 1 else ""].append(parameter)
    for name, parameters in units.items():
        if len(kinds := {parameter.dtype for parameter in parameters}) > 1:
            got = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
            raise InputError("parameters that are gathered together have several dtypes", got=f"{got} in {name!r}")
    own = units.pop("")
    parts = [("", [one for one in own if one is not alone]), ("", [one for one in own if one is alone])]
    return [(layers.get(name, module), parameters) for name, parameters in [*parts, *units.items()] if parameters]


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
    """Names and modules of a container's entries, and of those in containers among them."""
    for key, entry in container.named_children():
        path = f"{name}.{key}".lstrip(".")
        if isinstance(entry, (nn.ModuleList, nn.ModuleDict)):
            yield from _entries(path, entry)
        else:
            yield path, entry


def _layer_of(name: str, layers: Iterable[str]) -> str | None:
    return next((layer for layer in layers if name.startswith(f"{layer}.")), None)
