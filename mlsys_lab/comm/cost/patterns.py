"""Rounds of messages that each form of all-reduce consists of, without running it: for cost on any topology.

Chunks are taken as equal, so sizes are fractions of bytes; `volumes` has the exact totals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mlsys_lab.comm.trees import binomial_place, double_tree_places
from mlsys_lab.errors import InputError


@dataclass(frozen=True)
class Round:
    """Messages (source, destination, share of the array) that travel at once, `times` times over."""

    times: int
    messages: tuple[tuple[int, int, float], ...]


Pattern = list[Round]


def naive(p: int) -> Pattern:
    """Each rank to rank 0, in turn, and back."""
    return [Round(1, ((r, 0, 1.0),)) for r in range(1, p)] + [Round(1, ((0, r, 1.0),)) for r in range(1, p)]


def tree(p: int) -> Pattern:
    """Levels of the binomial tree, from the leaves up and back down."""
    levels: list[list[tuple[int, int, float]]] = [[] for _ in range((p - 1).bit_length())]
    for rank in range(1, p):
        parent = binomial_place(rank, p).parent
        assert parent is not None
        levels[(rank & -rank).bit_length() - 1].append((rank, parent, 1.0))
    up = [Round(1, tuple(level)) for level in levels]
    down = [Round(1, tuple((b, a, share) for a, b, share in level)) for level in reversed(levels)]
    return up + down


def ring(p: int) -> Pattern:
    """All to the right at once, a p-th of the array each."""
    return [Round(2 * (p - 1), tuple((r, (r + 1) % p, 1 / p) for r in range(p)))]


def halving_doubling(p: int) -> Pattern:
    """Exchanges at distances p/2, p/4 … 1 and back, among the largest power of two of the ranks."""
    power = 1 << (p.bit_length() - 1)
    spare = p - power
    core = [*range(0, 2 * spare, 2), *range(2 * spare, p)]
    distances = [1 << k for k in range(power.bit_length() - 1)]
    exchanges = [Round(1, tuple((core[v], core[v ^ d], d / power) for v in range(power))) for d in distances]
    fold = [Round(1, tuple((2 * i + 1, 2 * i, 1.0) for i in range(spare)))] if spare else []
    unfold = [Round(1, tuple((b, a, share) for a, b, share in one.messages)) for one in fold]
    return [*fold, *reversed(exchanges), *exchanges, *unfold]


def chain(p: int, pieces: int = 64) -> Pattern:
    """All links of the chain at once, first one way and then the other, in pieces."""
    times = p - 2 + pieces
    there = tuple((r, r + 1, 1 / pieces) for r in range(p - 1))
    back = tuple((r + 1, r, 1 / pieces) for r in range(p - 1))
    return [Round(times, there), Round(times, back)]


def double_tree(p: int, pieces: int = 64) -> Pattern:
    """The edges of two trees, each rank's parent and children in turn, half the array in pieces on each."""
    edges = [
        (rank, place.parent, 0.5 / pieces)
        for rank in range(p)
        for place in double_tree_places(rank, p)
        if place.parent is not None
    ]
    depth = math.ceil(math.log2(p))
    # A rank with two children takes two turns for each piece; so do all others meanwhile, half of them idle.
    first, second = tuple(edges[::2]), tuple(edges[1::2])
    turn = pieces + depth - 1
    return [
        *(Round(turn, half) for half in (first, second)),
        *(Round(turn, tuple((b, a, share) for a, b, share in half)) for half in (first, second)),
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
"""Pattern of each form of all-reduce, of the number of ranks; `hierarchical` also needs the size of an island."""
