"""How NCCL chooses between rings and trees and between its three protocols: the model in its tuner, in plain form.

NCCL estimates time = latency + bytes/bandwidth for every (algorithm, protocol) and takes the least. The figures are
those of NVIDIA/nccl, src/graph/tuning.cc at 01afd20 (2021: NVLink of Volta and Ampere); later versions change the
numbers, and the shape stays. Left out: corrections for trees of medium sizes and for large rings over many nodes, other
bounds where all GPUs are A100, a discount where nodes have a single GPU, CollNet, and NVLS (see `nvls_bound_s`).

Protocols, by what they do about a receiver that must know when data is there (Hu et al. 2025, arXiv:2507.04786):
Simple moves large chunks and synchronises by a flag after each, best at size, slow to start. LL sends 8 bytes of which
4 are a flag: half the bandwidth at best, no fence, quickest. LL128 sends 128 bytes of which 8 are a flag.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mlsys_lab.errors import InputError

Algorithm = Literal["ring", "tree"]
Protocol = Literal["LL", "LL128", "Simple"]
Wire = Literal["nvlink", "pcie", "network"]

LINE_BYTES: dict[Protocol, tuple[int, int]] = {"LL": (4, 4), "LL128": (120, 8)}
"""Bytes of data and bytes of flag in what a protocol sends at once; Simple has its flags elsewhere."""

BASE_LATENCY_US: dict[tuple[Algorithm, Protocol], float] = {
    ("tree", "LL"): 4.4,
    ("tree", "LL128"): 4.4,
    ("tree", "Simple"): 0.0,
    ("ring", "LL"): 3.6,
    ("ring", "LL128"): 10.0,
    ("ring", "Simple"): 8.4,
}
HOP_LATENCY_US: dict[tuple[Wire, Algorithm], dict[Protocol, float]] = {
    ("nvlink", "tree"): {"LL": 0.52, "LL128": 1.2, "Simple": 28.0},
    ("nvlink", "ring"): {"LL": 0.47, "LL128": 1.9, "Simple": 3.4},
    ("pcie", "tree"): {"LL": 1.0, "LL128": 1.9, "Simple": 28.0},
    ("pcie", "ring"): {"LL": 1.0, "LL128": 2.5, "Simple": 5.7},
    ("network", "tree"): {"LL": 5.0, "LL128": 8.5, "Simple": 50.0},
    ("network", "ring"): {"LL": 2.7, "LL128": 4.0, "Simple": 9.6},
}
LL128_CHANNEL_GB_PER_S = 16.7  # most that one channel carries of an all-reduce


def payload_share(protocol: Protocol) -> float:
    """Bytes of data in each byte that a protocol sends."""
    data, flags = LINE_BYTES.get(protocol, (1, 0))
    return data / (data + flags)


@dataclass(frozen=True)
class Cluster:
    """Nodes of GPUs as NCCL sees them: `channels` rings (or trees), each of `channel_bytes_per_s`, over all of them."""

    nodes: int
    per_node: int
    channels: int
    channel_bytes_per_s: float
    inside: Wire = "nvlink"

    def __post_init__(self) -> None:
        if min(self.nodes, self.per_node, self.channels) < 1 or not self.channel_bytes_per_s > 0:
            raise InputError("a cluster has nodes, GPUs, channels and a bandwidth", got=str(self))
        if self.ranks < 2:
            raise InputError("a collective needs two ranks", got=self.ranks)

    @property
    def ranks(self) -> int:
        """Number of GPUs."""
        return self.nodes * self.per_node

    @property
    def bus_bytes_per_s(self) -> float:
        """Bandwidth of all channels together."""
        return self.channels * self.channel_bytes_per_s


@dataclass(frozen=True)
class Estimate:
    """NCCL's estimate for one way to do an all-reduce: a time that grows as latency + bytes/bandwidth."""

    algorithm: Algorithm
    protocol: Protocol
    latency_s: float
    bytes_per_s: float

    def time_s(self, size_bytes: float) -> float:
        """Seconds for an array of this size."""
        return self.latency_s + size_bytes / self.bytes_per_s


def estimate_all_reduce(cluster: Cluster, algorithm: Algorithm, protocol: Protocol) -> Estimate:
    """Latency and algorithm bandwidth of an all-reduce done in this way."""
    hops = HOP_LATENCY_US[cluster.inside, algorithm][protocol]
    between = HOP_LATENCY_US["network", algorithm][protocol]
    if cluster.nodes > 1 and protocol == "LL":
        hops *= 1.8
    if algorithm == "ring":
        steps, between_steps = 2 * (cluster.ranks - 1), 2 * (cluster.nodes - 1)
        latency_us = (steps - between_steps) * hops + between_steps * between
        bandwidth = cluster.bus_bytes_per_s * _ring_share(protocol) * cluster.ranks / steps
    else:
        latency_us = 2 * ((cluster.per_node - 1) * hops + int(math.log2(cluster.nodes)) * between)
        bandwidth = _tree_bytes_per_s(cluster, protocol) / 2
    if protocol == "LL128" and algorithm == "ring":
        most = LL128_CHANNEL_GB_PER_S * 1e9 * cluster.channels
        bandwidth = min(bandwidth, most * cluster.ranks / (2 * (cluster.ranks - 1)))
    return Estimate(algorithm, protocol, (BASE_LATENCY_US[algorithm, protocol] + latency_us) * 1e-6, bandwidth)


def _ring_share(protocol: Protocol) -> float:
    """Share of the bus bandwidth that a ring's all-reduce gets out of each protocol, as NCCL's tuner has it."""
    return {"LL": 1 / 4, "LL128": 0.92, "Simple": 1.0}[protocol]


def _tree_bytes_per_s(cluster: Cluster, protocol: Protocol) -> float:
    bus = min(0.9 * cluster.bus_bytes_per_s, (80e9 if cluster.nodes > 2 else 110e9))
    if protocol == "LL":
        return bus / 3.8
    if protocol == "LL128":
        share = 7 / 9 if cluster.nodes == 1 else 0.915
        return min(bus * share, LL128_CHANNEL_GB_PER_S * 1e9 * cluster.channels * 7 / 9)
    return bus


def rank_estimates(cluster: Cluster, size_bytes: float) -> list[Estimate]:
    """All six ways to do an all-reduce of this size, the fastest first: NCCL would take that."""
    ways = [estimate_all_reduce(cluster, algorithm, protocol) for algorithm, protocol in BASE_LATENCY_US]
    return sorted(ways, key=lambda way: way.time_s(size_bytes))


def nvls_bound_s(size_bytes: float, port_bytes_per_s: float) -> float:
    """Least time of an all-reduce inside switches that add (NVLink SHARP): each GPU sends and receives the array once.

    A ring sends 2·(p - 1)/p of it over each port: the gain is that factor, almost 2, and never more.
    """
    if not port_bytes_per_s > 0:
        raise InputError("a port has a positive bandwidth", got=port_bytes_per_s)
    return size_bytes / port_bytes_per_s
