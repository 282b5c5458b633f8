"""Interactive figure of all-reduce algorithms: predicted time by array size, on topologies of several sizes.

A prediction of `comm.cost.selection` is linear in the array's bytes, so two numbers per algorithm suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import anywidget
import traitlets

from mlsys_lab import hardware
from mlsys_lab.comm.cost import topology as topologies
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
    return topologies.rails(ranks // 8, 8, inside_bytes_per_s=_NVLINK, rail_bytes_per_s=RAIL_BYTES_PER_S)


TOPOLOGIES: Mapping[str, tuple[Callable[[int], Topology], tuple[int, ...]]] = {
    "NVLink island": (lambda ranks: topologies.nvlink_island(ranks, _NVLINK), (2, 3, 4, 6, 8, 16, 36, 72)),
    "PCIe tree": (lambda ranks: topologies.pcie_tree(ranks, _PCIE), (2, 4, 6, 8)),
    "nodes of 8 on rails": (rails_of_eight, (16, 24, 32, 48, 64, 128)),
    "fat tree, 4:1": (
        lambda ranks: topologies.fat_tree(ranks, RAIL_BYTES_PER_S, oversubscription=4),
        (8, 16, 24, 32, 64),
    ),
    "torus": (lambda ranks: topologies.torus(_TORUS[ranks], RAIL_BYTES_PER_S), tuple(_TORUS)),
}
"""Topologies by name: a function that builds one, and the numbers of ranks that the figure supports."""


def all_reduce_data(
    topology_name: str = "NVLink island", *, ranks: int = 8, size_bytes: float = 2**20, algorithm: str = "ring"
) -> dict[str, Any]:
    """Data of the figure, which initially shows a topology, number of ranks, array size and algorithm to compare.

    InputError for an unknown topology or number of ranks, and a size outside 2⁸ to 2³³ bytes.
    """
    if topology_name not in TOPOLOGIES:
        raise InputError(
            "no such topology",
            got=repr(topology_name),
            expected=", ".join(TOPOLOGIES),
            help=did_you_mean(topology_name, TOPOLOGIES),
        )
    counts = TOPOLOGIES[topology_name][1]
    if ranks not in counts:
        raise InputError(f"no {topology_name} of this size", got=ranks, expected=f"one of {counts}")
    if not 2**8 <= size_bytes <= 2**33:
        raise InputError("size out of range", got=f"{size_bytes:g} bytes", expected="256 to 2**33")
    return {
        "topologies": [
            {"name": name, "sizes": [{"ranks": count, "algorithms": _lines(build(count))} for count in counts]}
            for name, (build, counts) in TOPOLOGIES.items()
        ],
        "topology": topology_name,
        "ranks": ranks,
        "size_bytes": float(size_bytes),
        "algorithm": algorithm,
    }


def _lines(topology: Topology) -> list[dict[str, Any]]:
    """Steps, latency in seconds and seconds per byte of each algorithm."""
    largest = 2**33
    return [
        {"name": one.algorithm, "steps": one.steps, "latency_s": one.latency_s, "s_per_byte": one.transfer_s / largest}
        for one in sorted(select_algorithm(largest, topology).predictions, key=lambda one: one.algorithm)
    ]


def all_reduce_table(data: Mapping[str, Any]) -> str:
    """HTML table of the fastest algorithm for a small, a medium and a large array, for pages without JavaScript."""
    rows = []
    for network in data["topologies"]:
        for one in network["sizes"]:
            cells = []
            for size in _TABLE_BYTES:
                times = {line["name"]: line["latency_s"] + line["s_per_byte"] * size for line in one["algorithms"]}
                fastest = min(times, key=times.__getitem__)
                cells.append(f"{fastest}, {1e6 * times[fastest]:.3g} µs")
            rows.append((network["name"], one["ranks"], *cells))
    return table(("topology", "ranks", "1 KiB", "1 MiB", "1 GiB"), rows)


class AllReduce(anywidget.AnyWidget):
    """Notebook figure of the fastest all-reduce by array size: `AllReduce.of("PCIe tree", ranks=4)`.

    topology, ranks: one of `topologies` and of its sizes; algorithm: compared with the fastest.
    """

    _esm = esm("all_reduce")
    topologies: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True)
    topology = traitlets.Unicode().tag(sync=True)
    ranks = traitlets.Int(8).tag(sync=True)
    size_bytes = traitlets.Float(2**20).tag(sync=True)
    algorithm = traitlets.Unicode("ring").tag(sync=True)

    @classmethod
    def of(cls, topology_name: str = "NVLink island", **options: Any) -> Self:
        """Figure that initially shows a topology; `options` are keyword arguments of `all_reduce_data`."""
        return cls(**all_reduce_data(topology_name, **options))
