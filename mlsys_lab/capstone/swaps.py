"""Layers that run in place of the stack's: the solved lab's, the reference package's, or replicated optimizers.

Dimension letters: P elements of all weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from mlsys_lab.capstone.job import State
from mlsys_lab.capstone.stack import SWAPS, Source, Stack, load_stack
from mlsys_lab.comm import Rank
from mlsys_lab.errors import InputError
from mlsys_lab.stack import Layer
from mlsys_lab.stack.workspace import Workspace

DATA_PARALLEL = "data_parallel"
REPLICATED = {
    "replicated-ring": ("ring", "all_reduce"),
    "replicated-halving-doubling": ("halving_doubling", "halving_doubling"),
}
"""Kinds of the data-parallel layer: lab 07's name of the algorithm, and the collective that runs it."""


class ReplicatedOptimizer:
    """An optimizer of lab 08's interface whose states are replicated: each rank updates all weights.

    A subclass has the collective, `all_reduce(rank, x)`.
    """

    all_reduce: Callable[[Rank, torch.Tensor], torch.Tensor]

    def __init__(self, params: Sequence[torch.Tensor], optimizer_class: Any, group: Rank, **options: Any) -> None:
        """Start from parameters that all ranks have."""
        self.group, self.params = group, list(params)
        self.shard = torch.cat([param.detach().reshape(-1) for param in self.params]).requires_grad_()  # (P,)
        self.optimizer = optimizer_class([self.shard], **options)

    def reduce_gradients(self) -> None:
        """Average all gradients over the ranks."""
        grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in self.params]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        self.shard.grad = type(self).all_reduce(self.group, flat) / self.group.size

    def step(self) -> None:
        """Update all weights."""
        self.optimizer.step()
        self.gather_weights()

    def gather_weights(self) -> None:
        """Overwrite every parameter from the flat weights."""
        chunks = torch.split(self.shard.detach(), [param.numel() for param in self.params])
        for param, chunk in zip(self.params, chunks, strict=True):
            param.data.copy_(chunk.view(param.shape))


def clip_grad_norm(shards: Sequence[torch.Tensor], max_norm: float, group: Rank) -> float:
    """Clip gradients that each rank has in full by their norm, without a message; return the norm."""
    return float(torch.nn.utils.clip_grad_norm_(shards, max_norm))


def save_state(optimizer: ReplicatedOptimizer, position: int) -> State:
    """What a rank needs to continue: all weights, their optimizer states, and the position."""
    entries = {"weights": optimizer.shard.detach(), "position": torch.tensor(position)}
    return {name: one.clone() for name, one in (entries | optimizer.optimizer.state[optimizer.shard]).items()}


def load_state(optimizer: ReplicatedOptimizer, state: State) -> int:
    """Load what `save_state` returned; return the position."""
    entries = {name: one.clone() for name, one in state.items()}
    optimizer.shard.data.copy_(entries.pop("weights"))
    position = int(entries.pop("position"))
    optimizer.optimizer.state[optimizer.shard] = entries
    optimizer.gather_weights()
    return position


def reshard(states: Sequence[State], world_size: int) -> list[State]:
    """States for any number of ranks: each has all."""
    return [dict(states[0]) for _ in range(world_size)]


def load_swapped(workspace: Workspace | None, swaps: Mapping[str, str]) -> Stack:
    """Load a stack as `load_stack` does; `data_parallel` may also be swapped for a kind of `REPLICATED`.

    Raises InputError as `load_stack`, and where the stack's collectives do not have the kind's.
    """
    kind = swaps.get(DATA_PARALLEL, "")
    if kind not in REPLICATED:
        if kind and kind not in SWAPS:
            expected = f"one of {', '.join([*SWAPS, *REPLICATED])}"
            raise InputError(f"the {DATA_PARALLEL} layer cannot be swapped", got=repr(kind), expected=expected)
        return load_stack(workspace, swaps)
    return replicate(
        load_stack(workspace, {field: one for field, one in swaps.items() if field != DATA_PARALLEL}), kind
    )


def replicate(stack: Stack, kind: str) -> Stack:
    """Copy of a stack whose data-parallel layer is a kind of `REPLICATED`."""
    _, collective = REPLICATED[kind]
    if not hasattr(stack.collectives, collective):
        raise InputError(f"the collectives layer has no {collective}", got=stack.sources["collectives"])
    all_reduce = staticmethod(getattr(stack.collectives, collective))
    names = {
        "ShardedOptimizer": type("ReplicatedOptimizer", (ReplicatedOptimizer,), {"all_reduce": all_reduce}),
        "clip_grad_norm": clip_grad_norm,
        "save_state": save_state,
        "load_state": load_state,
        "reshard": reshard,
    }
    source = Source("reference", "", f"swapped for {kind}")
    return replace(replace_names(stack, DATA_PARALLEL, **names), sources={**stack.sources, DATA_PARALLEL: source})


def replace_names(stack: Stack, field: str, **names: Any) -> Stack:
    """Copy of a stack in which a layer has these in place of its own names."""
    layer = getattr(stack, field)
    own = {name: getattr(layer, name) for name in layer.sources}
    layers: dict[str, Any] = {field: Layer(layer.topic, own | names, layer.sources)}
    return replace(stack, **layers)
