"""Device mesh: ranks on a grid with one axis per kind of parallelism, tensor innermost."""

from __future__ import annotations

from mlsys_lab.comm import Rank
from mlsys_lab.errors import InputError
from mlsys_lab.flops.layout import Layout

AXES = ("tensor", "context", "data", "pipeline")
"""Axes from the innermost, along which consecutive ranks differ, to the outermost."""


class DeviceMesh:
    """This rank's coordinates and process groups in a layout.

    `coordinates` has its index on each axis. `tensor_group`, `context_group`, `data_group` and `pipeline_group` are the
    groups of ranks that differ from it on that axis only; `replica_group` those with the same parameters (data and
    context axes). Expert parallelism splits the data axis: `expert_group` is the group of neighbouring data ranks that
    shard the experts, and `expert_replica_group` the replicas with the same experts. In torch: `DeviceMesh`; in
    Megatron: `parallel_state`. Raises InputError unless the layout has as many devices as there are ranks.

    >>> from mlsys_lab.comm import run
    >>> layout = Layout(data=2, tensor=2, pipeline=2)
    >>> run(lambda rank, _: DeviceMesh(layout, rank).coordinates, [None] * 8).results[5]
    {'tensor': 1, 'context': 0, 'data': 0, 'pipeline': 1}
    """

    def __init__(self, layout: Layout, world: Rank) -> None:
        if layout.devices != world.size:
            raise InputError("the layout has another number of ranks", got=layout.devices, expected=world.size)
        self.layout, self.world = layout, world
        self.coordinates = mesh_coordinates(layout, world.rank)
        groups = (self.group_along(axis) for axis in AXES)
        self.tensor_group, self.context_group, self.data_group, self.pipeline_group = groups
        self.replica_group = self.group_along("context", "data")
        group, index = divmod(self.coordinates["data"], layout.expert)
        self.expert_group = self.data_group.group(range(group * layout.expert, (group + 1) * layout.expert))
        self.expert_replica_group = self.replica_group.group(
            rank for rank in range(layout.replicas) if rank // layout.context % layout.expert == index
        )

    def group_along(self, *axes: str) -> Rank:
        """Group of the ranks that have this rank's coordinates on all other axes."""
        return self.world.group(
            rank
            for rank in range(self.world.size)
            if all(
                axis in axes or index == self.coordinates[axis]
                for axis, index in mesh_coordinates(self.layout, rank).items()
            )
        )

    def embedding_group(self) -> Rank | None:
        """Group of the first and the last pipeline stage, which both hold a tied embedding; None on other ranks.

        None too if one rank is both stages.
        """
        last = self.pipeline_group.size - 1
        return self.pipeline_group.group([0, last]) if last and self.pipeline_group.rank in (0, last) else None


def mesh_coordinates(layout: Layout, rank: int) -> dict[str, int]:
    """Index of a rank on each axis of a layout."""
    coordinates = {}
    for axis in AXES:
        rank, coordinates[axis] = divmod(rank, getattr(layout, axis))
    return coordinates
