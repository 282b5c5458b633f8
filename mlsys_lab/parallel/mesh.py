"""Ranks on a grid whose axes are kinds of parallelism, in the order that `mlsys_lab.flops.Layout` fixes."""

from __future__ import annotations

from mlsys_lab.comm import Rank
from mlsys_lab.errors import InputError
from mlsys_lab.flops.layout import Layout

AXES = ("tensor", "context", "data", "pipeline")
"""From the axis on which neighbouring ranks differ to the one on which they differ last."""


class DeviceMesh:
    """This rank's groups in a layout: with whom it divides matrices, sequences, batches and layers.

    `place` is its number on each axis; `tensor`, `context`, `data` and `pipeline` are the ranks that differ from it on
    that axis alone, `replicas` those that hold the same parameters (data and context). Of data ranks, `expert` are
    neighbours that divide the experts, and `expert_replicas` those of all replicas that have the same. In torch:
    `DeviceMesh`. Raises InputError where the layout is not of as many devices as there are ranks.

    >>> from mlsys_lab.comm import run
    >>> layout = Layout(data=2, tensor=2, pipeline=2)
    >>> run(lambda rank, _: DeviceMesh(layout, rank).place, [None] * 8).results[5]
    {'tensor': 1, 'context': 0, 'data': 0, 'pipeline': 1}
    """

    def __init__(self, layout: Layout, world: Rank) -> None:
        if layout.devices != world.size:
            raise InputError("the layout has another number of ranks", got=layout.devices, expected=world.size)
        self.layout, self.world = layout, world
        self.place = mesh_coordinates(layout, world.rank)
        self.tensor, self.context, self.data, self.pipeline = (self.along(axis) for axis in AXES)
        self.replicas = self.along("context", "data")
        group, number = divmod(self.place["data"], layout.expert)
        self.expert = self.data.group(range(group * layout.expert, (group + 1) * layout.expert))
        self.expert_replicas = self.replicas.group(
            rank for rank in range(layout.replicas) if rank // layout.context % layout.expert == number
        )

    def along(self, *axes: str) -> Rank:
        """Group of the ranks that stand where this one does on all axes but these."""
        return self.world.group(
            rank
            for rank in range(self.world.size)
            if all(
                axis in axes or number == self.place[axis]
                for axis, number in mesh_coordinates(self.layout, rank).items()
            )
        )

    def ends(self) -> Rank | None:
        """Group of the first and the last stage where this rank is on one of them and they are two, else None."""
        last = self.pipeline.size - 1
        return self.pipeline.group([0, last]) if last and self.pipeline.rank in (0, last) else None


def mesh_coordinates(layout: Layout, rank: int) -> dict[str, int]:
    """Number of a rank on each axis of a layout."""
    place = {}
    for axis in AXES:
        rank, place[axis] = divmod(rank, getattr(layout, axis))
    return place
