"""The α-β-γ model: a message of n bytes takes α + n·β, and adding arrays of n bytes takes n·γ.

Hockney 1994; for collectives Thakur, Rabenseifner and Gropp 2005, and Chan et al. 2007. Every rank sends and receives
one message at a time, messages share no links, and chunks are taken as equal. Letters: p ranks, n bytes of each rank's
array, m segments of a pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mlsys_lab.errors import InputError, did_you_mean


@dataclass(frozen=True)
class LinkCost:
    """Cost of a message: latency α, 1/`bytes_per_s` (β) for each byte, and 1/`add_bytes_per_s` (γ) to add it."""

    latency_s: float
    bytes_per_s: float
    add_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        if self.latency_s < 0 or not self.bytes_per_s > 0 or not self.add_bytes_per_s > 0:
            raise InputError("a link has a latency of at least 0 and positive rates", got=str(self))

    @property
    def half_bytes(self) -> float:
        """α/β, Hockney's n½: bytes of a message that reaches half the link's bandwidth.

        >>> LinkCost(1e-6, 450e9).half_bytes
        450000.0
        """
        return self.latency_s * self.bytes_per_s

    def time_s(self, messages: float, sent_bytes: float, added_bytes: float = 0.0) -> float:
        """Time of a chain of messages with these totals of bytes sent and added."""
        return messages * self.latency_s + sent_bytes / self.bytes_per_s + added_bytes / self.add_bytes_per_s


def naive(p: int, n: float, link: LinkCost) -> float:
    """Everything through rank 0: 2·(p - 1) messages of n bytes through its port."""
    return link.time_s(2 * (p - 1), 2 * (p - 1) * n, (p - 1) * n)


def tree(p: int, n: float, link: LinkCost) -> float:
    """Reduce and broadcast along a binomial tree: ⌈log₂ p⌉ rounds of n bytes each."""
    rounds = math.ceil(math.log2(p))
    return link.time_s(2 * rounds, 2 * rounds * n, rounds * n)


def ring(p: int, n: float, link: LinkCost) -> float:
    """Reduce-scatter and all-gather: 2·(p - 1) steps of n/p bytes.

    >>> round(ring(16, 64 * 2**20, LinkCost(5e-6, 50e9)) * 1e3, 5)
    2.66658
    """
    return link.time_s(2 * (p - 1), 2 * (p - 1) / p * n, (p - 1) / p * n)


def halving_doubling(p: int, n: float, link: LinkCost) -> float:
    """Recursive halving and doubling: 2·log₂ p steps, the ring's bytes; 2 more steps of n unless p is 2ᵏ."""
    power = 1 << (p.bit_length() - 1)
    core = link.time_s(2 * math.log2(power), 2 * (power - 1) / power * n, (power - 1) / power * n)
    return core + (link.time_s(2, 2 * n, n) if power < p else 0.0)


def chain(p: int, n: float, link: LinkCost) -> float:
    """Down a chain and back, pipelined in the best number of segments: 2·(p - 2 + m) steps of n/m bytes."""
    return 0.0 if p == 1 else _pipelined(2 * (p - 2), 2, n, link)


def double_tree(p: int, n: float, link: LinkCost) -> float:
    """Two binary trees with half the bytes each, pipelined in the best number of segments.

    A segment passes ⌈log₂ p⌉ levels up and as many down, two steps each. Segments of both trees are pipelined, and an
    inner rank sends four half segments: one up, two down, and one as a leaf of the other tree. This is the optimal
    schedule; ranks that greedily send what is ready take up to a third more steps.
    """
    return 0.0 if p == 1 else _pipelined(4 * math.ceil(math.log2(p)) - 4, 4, n / 2, link)


def _pipelined(fill: float, per_segment: float, n: float, link: LinkCost) -> float:
    """Time of fill + per_segment·m steps of n/m bytes, minimised over m ≥ 1."""
    if n == 0 or fill == 0:
        return link.time_s(fill + per_segment, (fill + per_segment) * n, (fill + per_segment) / 2 * n)
    byte_s = 1 / link.bytes_per_s + 0.5 / link.add_bytes_per_s
    best = math.sqrt(fill * n * byte_s / (per_segment * link.latency_s)) if link.latency_s else math.inf
    if best == math.inf:
        return per_segment * n * byte_s
    steps = [(fill + per_segment * m, m) for m in {max(1, math.floor(best)), max(1, math.ceil(best))}]
    return min(count * (link.latency_s + n / m * byte_s) for count, m in steps)


def ring_half_bytes(ranks: int, link: LinkCost) -> float:
    """Array size in bytes below which a ring, whose messages are n/p, spends more time on latency than on bytes.

    >>> ring_half_bytes(8, LinkCost(1e-6, 450e9))
    3600000.0
    """
    if ranks < 2:
        raise InputError("a ring has at least two ranks", got=ranks)
    return ranks * link.half_bytes


ALL_REDUCE: dict[str, Callable[[int, float, LinkCost], float]] = {
    "naive": naive,
    "tree": tree,
    "ring": ring,
    "halving_doubling": halving_doubling,
    "chain": chain,
    "double_tree": double_tree,
}
"""Seconds of each all-reduce algorithm, as a function of (ranks, bytes, link)."""


def all_reduce_s(algorithm: str, ranks: int, size_bytes: float, link: LinkCost) -> float:
    """Seconds of an all-reduce of `size_bytes` by the named algorithm. InputError for bad arguments."""
    if algorithm not in ALL_REDUCE:
        names = ", ".join(ALL_REDUCE)
        raise InputError(
            "unknown all-reduce algorithm", got=algorithm, expected=names, help=did_you_mean(algorithm, ALL_REDUCE)
        )
    if ranks < 1 or size_bytes < 0:
        raise InputError("an all-reduce has ranks and bytes", got=f"{ranks} ranks, {size_bytes} bytes")
    return 0.0 if ranks == 1 else ALL_REDUCE[algorithm](ranks, size_bytes, link)


def lower_bound_s(ranks: int, size_bytes: float, link: LinkCost) -> float:
    """Lower bound of an all-reduce: ⌈log₂ p⌉ latencies, and 2·(p - 1)/p of the bytes through each port.

    Chan et al. 2007, §3: no algorithm does better in either term; none reaches both at once.
    """
    return max(math.ceil(math.log2(ranks)) * link.latency_s, 2 * (ranks - 1) / ranks * size_bytes / link.bytes_per_s)


def crossover_bytes(first: str, second: str, ranks: int, link: LinkCost, *, largest: float = 2**40) -> float | None:
    """Size in bytes above which `second` is faster than `first`; None if there is no such crossover.

    >>> round(crossover_bytes("tree", "ring", 16, LinkCost(5e-6, 50e9)))
    897960
    """

    def gain(size: float) -> float:
        return all_reduce_s(first, ranks, size, link) - all_reduce_s(second, ranks, size, link)

    low, high = 0.0, largest
    if gain(low) > 0 or gain(high) <= 0:
        return None
    while high - low > 0.5:
        middle = (low + high) / 2
        low, high = (low, middle) if gain(middle) > 0 else (middle, high)
    return high
