"""Collectives with a root: broadcast and scatter from it, gather and reduce to it.

Each has a linear form, in which the root talks to one rank after the other (p - 1 steps), and a tree (⌈log₂ p⌉ steps);
broadcast also has a pipelined chain for long arrays. Sums are taken in the order of the tree, so floating-point results
differ in their last digits from form to form.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.comm.rank import Rank, Request
from mlsys_lab.comm.trees import binomial_place


def broadcast_linear(rank: Rank, x: torch.Tensor, root: int = 0) -> torch.Tensor:
    """Return the root's `x` on every rank; the root sends it p - 1 times. Other ranks pass an array of its shape."""
    if rank.rank != root:
        return rank.recv(root, like=x)
    for other in others(rank, root):
        rank.send(x, other, "broadcast")
    return x.clone()


def broadcast_tree(rank: Rank, x: torch.Tensor, root: int = 0) -> torch.Tensor:
    """Return the root's `x` on every rank, by a binomial tree: whoever has it passes it on, ⌈log₂ p⌉ rounds."""
    place = binomial_place(rank.rank, rank.size, root)
    x = x.clone() if place.parent is None else rank.recv(place.parent, like=x)
    for child in place.children:
        rank.send(x, child, "broadcast")
    return x


def broadcast_chain(rank: Rank, x: torch.Tensor, root: int = 0, pieces: int = 8) -> torch.Tensor:
    """Return the root's `x` on every rank, passed on along a chain: p - 2 + `pieces` steps, n/pieces each."""
    number = (rank.rank - root) % rank.size
    out = x.clone()
    requests: list[Request] = []
    for piece in split_chunks(out.view(-1), pieces):
        if number > 0:
            piece.copy_(rank.recv((rank.rank - 1) % rank.size, like=piece))
        if number < rank.size - 1:
            requests.append(rank.isend(piece, (rank.rank + 1) % rank.size, "broadcast"))
    wait_all(requests)
    return out


def reduce_linear(rank: Rank, x: torch.Tensor, root: int = 0) -> torch.Tensor | None:
    """Return the sum of all ranks' `x` on the root, None elsewhere; the root receives p - 1 times."""
    if rank.rank != root:
        rank.send(x, root, "reduce")
        return None
    total = x.clone()
    for other in others(rank, root):
        total += rank.recv(other, like=x)
    return total


def reduce_tree(rank: Rank, x: torch.Tensor, root: int = 0) -> torch.Tensor | None:
    """Return the sum of all ranks' `x` on the root, None elsewhere: the broadcast tree walked from leaves to root."""
    place = binomial_place(rank.rank, rank.size, root)
    total = x.clone()
    for child in reversed(place.children):
        total += rank.recv(child, like=x)
    if place.parent is None:
        return total
    rank.send(total, place.parent, "reduce")
    return None


def gather(rank: Rank, x: torch.Tensor, root: int = 0) -> list[torch.Tensor] | None:
    """Return on the root the list of all ranks' `x`, whose shapes may differ, in order of rank; None elsewhere."""
    if rank.rank != root:
        rank.send(x, root, "gather")
        return None
    return [x.clone() if other == root else rank.recv(other) for other in range(rank.size)]


def scatter(rank: Rank, parts: Sequence[torch.Tensor] | None, root: int = 0) -> torch.Tensor:
    """Return to each rank its part of the root's `parts`, one array for each rank; other ranks pass None."""
    if rank.rank != root:
        return rank.recv(root)
    assert parts is not None and len(parts) == rank.size
    for other in others(rank, root):
        rank.send(parts[other], other, "scatter")
    return parts[root].clone()


def others(rank: Rank, root: int) -> list[int]:
    """All ranks but the root, from the one after it round to the one before it."""
    return [(root + step) % rank.size for step in range(1, rank.size)]


def wait_all(requests: Sequence[Request]) -> None:
    """Wait until every request is done."""
    for request in requests:
        request.wait()


def receive(request: Request) -> torch.Tensor:
    """Wait for a receive that was posted earlier and return its array."""
    array = request.wait()
    assert array is not None, "a send has no array"
    return array
