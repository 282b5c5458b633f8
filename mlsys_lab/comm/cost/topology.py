"""Topologies: links with a capacity in each direction, and the route of a message over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlsys_lab.errors import InputError

Route = tuple[str, ...]


@dataclass(frozen=True)
class Topology:
    """`size` ranks; `route(a, b)` names the links from a to b, `capacity` has each link's bytes per second.

    A link has one direction: a cable is two links. `latency_s(a, b)` is the time of an empty message.
    """

    name: str
    size: int
    capacity: dict[str, float]
    route: Callable[[int, int], Route]
    latency_s: Callable[[int, int], float]

    def message_s(self, source: int, destination: int, size_bytes: float) -> float:
        """Seconds of a message without contention: its latency, then its bytes."""
        return self.latency_s(source, destination) + size_bytes / self.path_bytes_per_s(source, destination)

    def path_bytes_per_s(self, source: int, destination: int) -> float:
        """Bandwidth of a message without contention: that of the slowest link on its route."""
        return min((self.capacity[link] for link in self.route(source, destination)), default=math.inf)


def nvlink_island(ranks: int, bytes_per_s: float, latency_s: float = 1e-6) -> Topology:
    """GPUs on an NVSwitch, each with a port of `bytes_per_s` in each direction; messages share ports only."""
    _require(ranks=ranks, bytes_per_s=bytes_per_s)
    return Topology(
        f"NVLink island of {ranks}",
        ranks,
        {f"{rank} {direction}": bytes_per_s for rank in range(ranks) for direction in ("out", "in")},
        lambda a, b: (f"{a} out", f"{b} in"),
        lambda a, b: latency_s,
    )


def pcie_tree(ranks: int, bytes_per_s: float, latency_s: float = 2e-6, *, per_switch: int = 2) -> Topology:
    """GPUs in pairs (or more) under PCIe switches, all switches under one host; traffic within a switch stays there."""
    _require(ranks=ranks, bytes_per_s=bytes_per_s, per_switch=per_switch)
    switches = math.ceil(ranks / per_switch)
    names = [f"{rank}" for rank in range(ranks)] + [f"switch {switch}" for switch in range(switches)]

    def route(a: int, b: int) -> Route:
        first, second = a // per_switch, b // per_switch
        across = () if first == second else (f"switch {first} out", f"switch {second} in")
        return (f"{a} out", *across, f"{b} in")

    return Topology(
        f"PCIe tree of {ranks}, {per_switch} to a switch",
        ranks,
        {f"{name} {direction}": bytes_per_s for name in names for direction in ("out", "in")},
        route,
        lambda a, b: latency_s * (1 if a // per_switch == b // per_switch else 2),
    )


def rails(
    nodes: int,
    per_node: int,
    *,
    inside_bytes_per_s: float,
    rail_bytes_per_s: float,
    inside_latency_s: float = 1e-6,
    rail_latency_s: float = 5e-6,
) -> Topology:
    """Rail-optimised nodes: the i-th GPUs share a network, rail i; a message to another rail first goes over NVLink."""
    _require(nodes=nodes, per_node=per_node, inside_bytes_per_s=inside_bytes_per_s, rail_bytes_per_s=rail_bytes_per_s)
    ranks = nodes * per_node

    def route(a: int, b: int) -> Route:
        if a // per_node == b // per_node:
            return (f"{a} out", f"{b} in")
        via = a - a % per_node + b % per_node  # the GPU of a's node on b's rail
        inside = () if via == a else (f"{a} out", f"{via} in")
        return (*inside, f"{via} rail out", f"{b} rail in")

    def latency_s(a: int, b: int) -> float:
        if a // per_node == b // per_node:
            return inside_latency_s
        return rail_latency_s + (inside_latency_s if a % per_node != b % per_node else 0.0)

    inside = {f"{rank} {direction}": inside_bytes_per_s for rank in range(ranks) for direction in ("out", "in")}
    network = {f"{rank} rail {direction}": rail_bytes_per_s for rank in range(ranks) for direction in ("out", "in")}
    return Topology(f"{nodes} nodes of {per_node} on rails", ranks, inside | network, route, latency_s)


def fat_tree(
    ranks: int, bytes_per_s: float, latency_s: float = 2e-6, *, per_leaf: int = 8, oversubscription: float = 1.0
) -> Topology:
    """Leaf switches of `per_leaf` ranks and a spine; an uplink has the bandwidth of per_leaf/oversubscription ports."""
    _require(ranks=ranks, bytes_per_s=bytes_per_s, per_leaf=per_leaf, oversubscription=oversubscription)
    leaves = math.ceil(ranks / per_leaf)

    def route(a: int, b: int) -> Route:
        first, second = a // per_leaf, b // per_leaf
        across = () if first == second else (f"leaf {first} out", f"leaf {second} in")
        return (f"{a} out", *across, f"{b} in")

    ports = {f"{rank} {direction}": bytes_per_s for rank in range(ranks) for direction in ("out", "in")}
    uplink = bytes_per_s * per_leaf / oversubscription
    uplinks = {f"leaf {leaf} {direction}": uplink for leaf in range(leaves) for direction in ("out", "in")}
    return Topology(
        f"fat tree of {ranks}, {per_leaf} to a leaf, {oversubscription:g}:1",
        ranks,
        ports | uplinks,
        route,
        lambda a, b: latency_s * (1 if a // per_leaf == b // per_leaf else 2),
    )


def torus(shape: Sequence[int], bytes_per_s: float, latency_s: float = 1e-6) -> Topology:
    """A torus of TPUs with links of `bytes_per_s` to both neighbours on each axis; routes go axis by axis.

    A route takes the shorter direction on each axis. Ranks are numbered with the last axis fastest. An axis of length
    two has one pair of links, not two.
    """
    _require(**{f"axis {i}": length for i, length in enumerate(shape)}, bytes_per_s=bytes_per_s)
    ranks = math.prod(shape)

    def coordinates(rank: int) -> list[int]:
        out = []
        for length in reversed(shape):
            rank, position = divmod(rank, length)
            out.append(position)
        return out[::-1]

    def hops(a: int, b: int) -> list[tuple[int, int]]:
        """Axis and direction (+1 or -1) of each hop."""
        path = []
        for axis, (start, end, length) in enumerate(zip(coordinates(a), coordinates(b), shape, strict=True)):
            ahead = (end - start) % length
            path += [(axis, 1)] * ahead if ahead <= length - ahead else [(axis, -1)] * (length - ahead)
        return path

    def step(position: list[int], axis: int, direction: int) -> list[int]:
        return [(x + direction) % shape[i] if i == axis else x for i, x in enumerate(position)]

    def name(position: list[int], axis: int, direction: int) -> str:
        return f"{'.'.join(map(str, position))} axis {axis} {'+' if direction > 0 or shape[axis] == 2 else '-'}"

    def route(a: int, b: int) -> Route:
        position, links = coordinates(a), []
        for axis, direction in hops(a, b):
            links.append(name(position, axis, direction))
            position = step(position, axis, direction)
        return tuple(links)

    capacity = {
        name(coordinates(rank), axis, direction): bytes_per_s
        for rank in range(ranks)
        for axis, length in enumerate(shape)
        for direction in (1, -1)
        if length > 1
    }
    title = "×".join(map(str, shape))
    return Topology(f"torus {title}", ranks, capacity, route, lambda a, b: latency_s * len(hops(a, b)))


def _require(**amounts: float) -> None:
    for name, amount in amounts.items():
        if not amount > 0 or (isinstance(amount, float) and math.isnan(amount)):
            raise InputError("a topology needs positive sizes and rates", got=f"{name}={amount}")
