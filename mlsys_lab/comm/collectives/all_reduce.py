"""All-reduce: every rank ends with the sum of all. From the simplest form to those that NCCL and MPI libraries use.

Each returns an array of its own and leaves `x` as it was. n elements, p ranks.
"""

from __future__ import annotations

import torch

from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.comm.collectives.rooted import (
    broadcast_linear,
    broadcast_tree,
    receive,
    reduce_linear,
    reduce_tree,
    wait_all,
)
from mlsys_lab.comm.collectives.scattered import (
    all_gather_doubling,
    all_gather_ring,
    all_gather_steps,
    reduce_scatter_halving,
    reduce_scatter_ring,
    reduce_scatter_steps,
)
from mlsys_lab.comm.collectives.steps import Steps, drain
from mlsys_lab.comm.rank import Rank, Request
from mlsys_lab.comm.trees import Place, double_tree_places
from mlsys_lab.errors import InputError

PURPOSE = "all_reduce"


def naive(rank: Rank, x: torch.Tensor) -> torch.Tensor:
    """All send to rank 0, which adds up and sends back: 2·(p - 1) steps of n elements, all through one rank."""
    total = reduce_linear(rank, x)
    return broadcast_linear(rank, x if total is None else total)


def tree(rank: Rank, x: torch.Tensor) -> torch.Tensor:
    """Reduce to rank 0 by a binomial tree and broadcast by the same: 2·⌈log₂ p⌉ steps of n elements."""
    total = reduce_tree(rank, x)
    return broadcast_tree(rank, x if total is None else total)


def ring(rank: Rank, x: torch.Tensor, purpose: str = PURPOSE) -> torch.Tensor:
    """Reduce-scatter, then all-gather round the ring: 2·(p - 1) steps of about n/p elements, the least bytes there are.

    Patarasuk and Yuan 2009. Rank r sends 2n - c_r - c_(r+1) elements, cᵢ being the length of chunk i.
    """
    return drain(ring_steps(rank, x, purpose))


def ring_steps(rank: Rank, x: torch.Tensor, purpose: str) -> Steps[torch.Tensor]:
    """Go through `ring` step by step, with a pause while each step's messages are under way."""
    chunk = yield from reduce_scatter_steps(rank, x, purpose)
    parts = yield from all_gather_steps(rank, chunk, purpose)
    return torch.cat(parts).reshape(x.shape)


def halving_doubling(rank: Rank, x: torch.Tensor) -> torch.Tensor:
    """Recursive halving, then recursive doubling: 2·log₂ p steps and as few bytes as the ring (Rabenseifner 2004).

    With p not a power of two, the odd ones of the first 2·(p - 2ᵏ) ranks hand their numbers to the rank before them,
    wait while the other 2ᵏ go through it, and get the sum back: two steps more, of n elements.
    """
    power = 1 << (rank.size.bit_length() - 1)
    spare = rank.size - power
    paired = rank.rank < 2 * spare
    if paired and rank.rank % 2:
        rank.send(x, rank.rank - 1, PURPOSE)
        return rank.recv(rank.rank - 1, like=x)
    if paired:
        x = x + rank.recv(rank.rank + 1, like=x)
    group = rank.group([*range(0, 2 * spare, 2), *range(2 * spare, rank.size)])
    chunk = reduce_scatter_halving(group, x, PURPOSE)
    total = all_gather_doubling(group, chunk, PURPOSE).reshape(x.shape)
    if paired:
        rank.send(total, rank.rank + 1, PURPOSE)
    return total


def chain(rank: Rank, x: torch.Tensor, pieces: int = 8) -> torch.Tensor:
    """Pass partial sums down a chain of ranks in pieces, and sums back up: 2·(p - 2 + pieces) steps of n/pieces."""
    place = Place(
        rank.rank + 1 if rank.rank + 1 < rank.size else None,
        (rank.rank - 1,) if rank.rank else (),
    )
    out = x.clone(memory_format=torch.contiguous_format)
    wait_all(_reduce_and_broadcast(rank, place, split_chunks(out, pieces)))
    return out


def double_tree(rank: Rank, x: torch.Tensor, pieces: int = 4) -> torch.Tensor:
    """Half the array up and down one binary tree, half on another that has the first one's leaves inside.

    Sanders, Speck and Träff 2009; NCCL's trees between nodes. Steps grow with log₂ p, and pieces follow each other, so
    that bytes come near the ring's.
    """
    out = x.clone(memory_format=torch.contiguous_format)
    everyone = range(rank.size)
    jobs = [
        (rank.group(everyone), place, split_chunks(half, pieces))
        for place, half in zip(double_tree_places(rank.rank, rank.size), split_chunks(out, 2), strict=True)
    ]
    leaves = [(group, tree.parent, half) for group, tree, half in jobs if tree.parent is not None and not tree.children]
    sent = [group.isend(piece, parent, PURPOSE) for group, parent, half in leaves for piece in half]
    coming = [(piece, group.irecv(parent, like=piece)) for group, parent, half in leaves for piece in half]
    for group, place, half in jobs:
        if place.children:
            sent += _reduce_and_broadcast(group, place, half)
    wait_all(sent)
    for piece, request in coming:
        piece.copy_(receive(request))
    return out


def hierarchical(rank: Rank, x: torch.Tensor, island: int) -> torch.Tensor:
    """Reduce-scatter within islands of `island` ranks, all-reduce each chunk between islands, all-gather within.

    Between islands each rank sends only 2·(q - 1)/q of its n/island elements, q being the number of islands. Raises
    InputError unless p is a multiple of `island`.
    """
    if island < 1 or rank.size % island:
        raise InputError("islands must be of one size", got=f"{rank.size} ranks, island={island}")
    base, place = rank.rank - rank.rank % island, rank.rank % island
    inside = rank.group(range(base, base + island))
    across = rank.group(range(place, rank.size, island))
    chunk = ring(across, reduce_scatter_ring(inside, x, PURPOSE))
    return torch.cat(all_gather_ring(inside, chunk, PURPOSE)).reshape(x.shape)


def _reduce_and_broadcast(rank: Rank, place: Place, pieces: list[torch.Tensor]) -> list[Request]:
    """Sum pieces towards the root of a tree and send the sums back down, in place; returns sends still under way."""
    upward = []
    for piece in pieces:
        for child in place.children:
            piece += rank.recv(child, like=piece)
        if place.parent is not None:
            upward.append(rank.isend(piece, place.parent, PURPOSE))
    downward = []
    for i, piece in enumerate(pieces):
        if place.parent is not None:
            upward[i].wait()
            piece.copy_(rank.recv(place.parent, like=piece))
        downward += [rank.isend(piece, child, PURPOSE) for child in place.children]
    return downward


ALGORITHMS = {
    "naive": naive,
    "tree": tree,
    "ring": ring,
    "halving_doubling": halving_doubling,
    "chain": chain,
    "double_tree": double_tree,
}
"""Forms of all-reduce that take a rank and an array, by name; `hierarchical` also needs the size of an island."""
