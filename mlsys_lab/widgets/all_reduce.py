"""Data of the explorer of all-reduce: every form's latency and time a byte on topologies of several sizes.

A prediction of `comm.cost.selection` is linear in the array's bytes: the figure needs two numbers for each algorithm
and none of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab import hardware
from mlsys_lab.comm.cost import topology
from mlsys_lab.comm.cost.selection import select_algorithm
from mlsys_lab.comm.cost.topology import Topology
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

RAIL_BYTES_PER_S = 50e9  # a port of 400 Gbit/s
_NVLINK = hardware.device("H100").link("NVLink").per_direction_bytes_per_s
_PCIE = hardware.device("H100").link("PCIe").per_direction_bytes_per_s
_TORUS = {16: (4, 4), 32: (2, 4, 4), 64: (4, 4, 4)}
_TABLE_BYTES = (2**10, 2**20, 2**30)


def rails_of_eight(ranks: int) -> Topology:
    """Nodes of eight H100s on an NVSwitch, each GPU with a network port of 400 Gbit/s on a rail of its own."""
    return topology.rails(ranks // 8, 8, inside_bytes_per_s=_NVLINK, rail_bytes_per_s=RAIL_BYTES_PER_S)


WORLDS: Mapping[str, tuple[Callable[[int], Topology], tuple[int, ...]]] = {
    "NVLink island": (lambda ranks: topology.nvlink_island(ranks, _NVLINK), (2, 3, 4, 6, 8, 16, 36, 72)),
    "PCIe tree": (lambda ranks: topology.pcie_tree(ranks, _PCIE), (2, 4, 6, 8)),
    "nodes of 8 on rails": (rails_of_eight, (16, 24, 32, 48, 64, 128)),
    "fat tree, 4:1": (
        lambda ranks: topology.fat_tree(ranks, RAIL_BYTES_PER_S, oversubscription=4),
        (8, 16, 24, 32, 64),
    ),
    "torus": (lambda ranks: topology.torus(_TORUS[ranks], RAIL_BYTES_PER_S), tuple(_TORUS)),
}
"""Topologies of the figure by name: how one of so many ranks is made, and which numbers of ranks there are."""


def all_reduce_data(
    world: str = "NVLink island", *, ranks: int = 8, size_bytes: float = 2**20, algorithm: str = "ring"
) -> dict[str, Any]:
    """The data of the explorer, opened on one of `WORLDS` with so many ranks, a size and the form to compare.

    Raises `InputError` for a topology, a number of ranks or a size (2⁸ to 2³³ bytes) that the figure does not have.
    """
    if world not in WORLDS:
        raise InputError(
            "no such topology", got=repr(world), expected=", ".join(WORLDS), help=did_you_mean(world, WORLDS)
        )
    if ranks not in WORLDS[world][1]:
        raise InputError(f"the figure has no {world} of this size", got=ranks, expected=f"one of {WORLDS[world][1]}")
    if not 2**8 <= size_bytes <= 2**33:
        raise InputError("the figure does not draw this size", got=f"{size_bytes:g} bytes", expected="256 to 2**33")
    return {
        "worlds": [
            {"name": name, "sizes": [{"ranks": count, "forms": _lines(make(count))} for count in counts]}
            for name, (make, counts) in WORLDS.items()
        ],
        "world": world,
        "ranks": ranks,
        "size": float(size_bytes),
        "algorithm": algorithm,
    }


def _lines(place: Topology) -> list[dict[str, Any]]:
    """Each form's steps, latency in seconds, and seconds a byte."""
    largest = 2**33
    return [
        {"name": one.algorithm, "steps": one.steps, "latency": one.latency_s, "byte": one.transfer_s / largest}
        for one in sorted(select_algorithm(largest, place).predictions, key=lambda one: one.algorithm)
    ]


def all_reduce_table(data: Mapping[str, Any]) -> str:
    """The fastest form for small, middling and large arrays as an HTML table, for where no script runs."""
    rows = []
    for world in data["worlds"]:
        for one in world["sizes"]:
            cells = []
            for size in _TABLE_BYTES:
                best = min(one["forms"], key=lambda form: form["latency"] + form["byte"] * size)
                cells.append(f"{best['name']}, {1e6 * (best['latency'] + best['byte'] * size):.3g} µs")
            rows.append((world["name"], one["ranks"], *cells))
    return table(("topology", "ranks", "1 KiB", "1 MiB", "1 GiB"), rows)


class AllReduce(anywidget.AnyWidget):
    """Notebook figure of which all-reduce is fastest, by size: `AllReduce.of("PCIe tree", ranks=4)`.

    world and ranks: one of `worlds` and of its sizes; size: bytes of the array; algorithm: the form that is compared.
    """

    _esm = esm("all_reduce")
    worlds: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    world = traitlets.Unicode().tag(sync=True)
    ranks = traitlets.Int(8).tag(sync=True)
    size = traitlets.Float(2**20).tag(sync=True)
    algorithm = traitlets.Unicode("ring").tag(sync=True)

    @classmethod
    def of(cls, world: str = "NVLink island", **options: Any) -> Self:
        """Figure opened on a topology; `options` are keyword arguments of `all_reduce_data`."""
        return cls(**all_reduce_data(world, **options))
