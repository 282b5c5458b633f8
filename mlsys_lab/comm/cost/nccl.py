"""NCCL's tuner: how it selects ring or tree and one of three protocols, as a plain model.

NCCL estimates time = latency + bytes/bandwidth for every (algorithm, protocol) and takes the fastest. The figures are
those of NVIDIA/nccl, src/graph/tuning.cc at 01afd20 (2021: NVLink of Volta and Ampere); later versions change the
numbers, not the form of the model. Left out: corrections for trees of medium sizes and for large rings over many nodes,
other bounds where all GPUs are A100, a discount where nodes have a single GPU, CollNet, and NVLS (see `nvls_bound_s`).

Protocols differ in how the receiver knows that data has arrived (Hu et al. 2025, arXiv:2507.04786): Simple sends large
chunks with a flag after each, for the best bandwidth and the highest latency. LL sends 8 bytes of which 4 are a flag:
at most half the bandwidth, no fence, the lowest latency. LL128 sends 128 bytes of which 8 are a flag.
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
"""Bytes of data and of flag in the unit that a protocol sends; Simple's flags are separate."""

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
LL128_CHANNEL_GB_PER_S = 16.7  # limit of one channel


def payload_fraction(protocol: Protocol) -> float:
    """Fraction of data in the bytes that a protocol sends."""
    data, flags = LINE_BYTES.get(protocol, (1, 0))
    return data / (data + flags)


@dataclass(frozen=True)
class NcclCluster:
    """Nodes of GPUs as NCCL sees them, connected by `channels` rings (or trees) of `channel_bytes_per_s` each."""

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
    """NCCL's estimate for an all-reduce by one algorithm and protocol: latency + bytes/bandwidth."""

    algorithm: Algorithm
    protocol: Protocol
    latency_s: float
    bytes_per_s: float

    def time_s(self, size_bytes: float) -> float:
        """Seconds for an array of this size."""
        return self.latency_s + size_bytes / self.bytes_per_s


def estimate_all_reduce(cluster: NcclCluster, algorithm: Algorithm, protocol: Protocol) -> Estimate:
    """Latency and algorithm bandwidth of an all-reduce by this algorithm and protocol."""
    hops = HOP_LATENCY_US[cluster.inside, algorithm][protocol]
    between = HOP_LATENCY_US["network", algorithm][protocol]
    if cluster.nodes > 1 and protocol == "LL":
        hops *= 1.8
    if algorithm == "ring":
        steps, between_steps = 2 * (cluster.ranks - 1), 2 * (cluster.nodes - 1)
        latency_us = (steps - between_steps) * hops + between_steps * between
        bandwidth = cluster.bus_bytes_per_s * _ring_efficiency(protocol) * cluster.ranks / steps
    else:
        latency_us = 2 * ((cluster.per_node - 1) * hops + int(math.log2(cluster.nodes)) * between)
        bandwidth = _tree_bytes_per_s(cluster, protocol) / 2
    if protocol == "LL128" and algorithm == "ring":
        limit = LL128_CHANNEL_GB_PER_S * 1e9 * cluster.channels
        bandwidth = min(bandwidth, limit * cluster.ranks / (2 * (cluster.ranks - 1)))
    return Estimate(algorithm, protocol, (BASE_LATENCY_US[algorithm, protocol] + latency_us) * 1e-6, bandwidth)


def _ring_efficiency(protocol: Protocol) -> float:
    """Fraction of the bus bandwidth that a ring reaches with each protocol, as in NCCL's tuner."""
    return {"LL": 1 / 4, "LL128": 0.92, "Simple": 1.0}[protocol]


def _tree_bytes_per_s(cluster: NcclCluster, protocol: Protocol) -> float:
    bus = min(0.9 * cluster.bus_bytes_per_s, (80e9 if cluster.nodes > 2 else 110e9))
    if protocol == "LL":
        return bus / 3.8
    if protocol == "LL128":
        efficiency = 7 / 9 if cluster.nodes == 1 else 0.915
        return min(bus * efficiency, LL128_CHANNEL_GB_PER_S * 1e9 * cluster.channels * 7 / 9)
    return bus


def rank_estimates(cluster: NcclCluster, size_bytes: float) -> list[Estimate]:
    """Estimates of all six algorithms and protocols for this size, the fastest, which NCCL would use, first."""
    estimates = [estimate_all_reduce(cluster, algorithm, protocol) for algorithm, protocol in BASE_LATENCY_US]
    return sorted(estimates, key=lambda estimate: estimate.time_s(size_bytes))


def nvls_bound_s(ranks: int, size_bytes: float, port_bytes_per_s: float) -> float:
    """Lower bound in s of an all-reduce by switches that add (NVLS, NVLink SHARP), from its bytes alone.

    The switch reads the whole array from each GPU, and each GPU sends the sum of its own shard back for the others:
    (p + 1)/p of the array through each port, where a ring sends 2·(p - 1)/p.
    """
    if not port_bytes_per_s > 0:
        raise InputError("a port has a positive bandwidth", got=port_bytes_per_s)
    return (ranks + 1) / ranks * size_bytes / port_bytes_per_s
