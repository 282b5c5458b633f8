"""Message patterns of the all-reduce algorithms, round by round, for their cost on any topology.

Chunks are taken as equal, so message sizes are fractions of the array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mlsys_lab.comm.trees import binomial_tree_node, double_tree_nodes
from mlsys_lab.errors import InputError


@dataclass(frozen=True)
class Round:
    """Messages (source, destination, fraction of the array) sent at the same time, repeated `times` times."""

    times: int
    messages: tuple[tuple[int, int, float], ...]


Pattern = list[Round]


def naive(p: int) -> Pattern:
    """Each rank to rank 0, one after the other, and back."""
    return [Round(1, ((r, 0, 1.0),)) for r in range(1, p)] + [Round(1, ((0, r, 1.0),)) for r in range(1, p)]


def tree(p: int) -> Pattern:
    """Levels of the binomial tree, from the leaves up and back down."""
    levels: list[list[tuple[int, int, float]]] = [[] for _ in range((p - 1).bit_length())]
    for rank in range(1, p):
        parent = binomial_tree_node(rank, p).parent
        assert parent is not None
        levels[(rank & -rank).bit_length() - 1].append((rank, parent, 1.0))
    up = [Round(1, tuple(level)) for level in levels]
    down = [Round(1, tuple((b, a, fraction) for a, b, fraction in level)) for level in reversed(levels)]
    return up + down


def ring(p: int) -> Pattern:
    """All ranks to the right at the same time, 1/p of the array each."""
    return [Round(2 * (p - 1), tuple((r, (r + 1) % p, 1 / p) for r in range(p)))]


def halving_doubling(p: int) -> Pattern:
    """Exchanges at distances p/2, p/4 … 1 and back, among the largest power of two of the ranks."""
    power = 1 << (p.bit_length() - 1)
    extra = p - power
    core = [*range(0, 2 * extra, 2), *range(2 * extra, p)]
    distances = [1 << k for k in range(power.bit_length() - 1)]
    exchanges = [Round(1, tuple((core[v], core[v ^ d], d / power) for v in range(power))) for d in distances]
    fold = [Round(1, tuple((2 * i + 1, 2 * i, 1.0) for i in range(extra)))] if extra else []
    unfold = [Round(1, tuple((b, a, fraction) for a, b, fraction in one.messages)) for one in fold]
    return [*fold, *reversed(exchanges), *exchanges, *unfold]


def chain(p: int, segments: int = 64) -> Pattern:
    """All links of the chain at the same time, first in one direction and then in the other, in segments."""
    times = p - 2 + segments
    there = tuple((r, r + 1, 1 / segments) for r in range(p - 1))
    back = tuple((r + 1, r, 1 / segments) for r in range(p - 1))
    return [Round(times, there), Round(times, back)]


def double_tree(p: int, segments: int = 64) -> Pattern:
    """The edges of two trees, half the array on each in segments; a rank serves parent and children in turn."""
    edges = [
        (rank, node.parent, 0.5 / segments)
        for rank in range(p)
        for node in double_tree_nodes(rank, p)
        if node.parent is not None
    ]
    depth = math.ceil(math.log2(p))
    # A rank with two children needs two turns for each segment, so all ranks get two, half of which are idle.
    first, second = tuple(edges[::2]), tuple(edges[1::2])
    turns = segments + depth - 1
    return [
        *(Round(turns, half) for half in (first, second)),
        *(Round(turns, tuple((b, a, fraction) for a, b, fraction in half)) for half in (first, second)),
    ]


def hierarchical(p: int, island: int) -> Pattern:
    """Rings within islands, rings between islands over each chunk, rings within islands."""
    if island < 1 or p % island:
        raise InputError("islands must be of one size", got=f"{p} ranks, island={island}")
    count = p // island
    inside = tuple((r, r - r % island + (r + 1) % island, 1 / island) for r in range(p))
    across = tuple((r, (r + island) % p, 1 / p) for r in range(p))
    return [
        one for one in (Round(2 * (island - 1), inside), Round(2 * (count - 1), across)) if one.times and one.messages
    ]


ALL_REDUCE: dict[str, Callable[[int], Pattern]] = {
    "naive": naive,
    "tree": tree,
    "ring": ring,
    "halving_doubling": halving_doubling,
    "chain": chain,
    "double_tree": double_tree,
}
"""Pattern of each algorithm, as a function of the number of ranks; `hierarchical` also needs an island's size."""
