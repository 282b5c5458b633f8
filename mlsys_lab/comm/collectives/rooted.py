"""Collectives with a root: broadcast and scatter from it, reduce and gather to it.

Broadcast and reduce have a linear algorithm, in which the root communicates with one rank after the other (p - 1
steps), and a tree (⌈log₂ p⌉ steps); broadcast also has a pipelined chain for long arrays. Sums follow the order of the
tree, so floating-point results of different algorithms differ by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.comm.rank import Rank, Request
from mlsys_lab.comm.trees import binomial_tree_node


def broadcast_linear(rank: Rank, x: torch.Tensor, root: int = 0) -> torch.Tensor:
    """Return the root's `x` on every rank; the root sends it p - 1 times. Other ranks pass an array of its shape."""
    if rank.rank != root:
        return rank.recv(root, like=x)
    for other in other_ranks(rank, root):
        rank.send(x, other, "broadcast")
    return x.clone()


def broadcast(rank: Rank, x: torch.Tensor, root: int = 0) -> torch.Tensor:
    """Return the root's `x` on every rank, along a binomial tree: ranks that have it pass it on, ⌈log₂ p⌉ rounds."""
    node = binomial_tree_node(rank.rank, rank.size, root)
    x = x.clone() if node.parent is None else rank.recv(node.parent, like=x)
    for child in node.children:
        rank.send(x, child, "broadcast")
    return x


def broadcast_chain(rank: Rank, x: torch.Tensor, root: int = 0, segments: int = 8) -> torch.Tensor:
    """Return the root's `x` on every rank, pipelined along a chain: p - 2 + `segments` steps of n/segments."""
    number = (rank.rank - root) % rank.size
    out = x.clone()
    requests: list[Request] = []
    for segment in split_chunks(out.view(-1), segments):
        if number > 0:
            segment.copy_(rank.recv((rank.rank - 1) % rank.size, like=segment))
        if number < rank.size - 1:
            requests.append(rank.isend(segment, (rank.rank + 1) % rank.size, "broadcast"))
    wait_all(requests)
    return out


def reduce_linear(rank: Rank, x: torch.Tensor, root: int = 0) -> torch.Tensor | None:
    """Return the sum of all ranks' `x` on the root, None elsewhere; the root receives p - 1 times."""
    if rank.rank != root:
        rank.send(x, root, "reduce")
        return None
    total = x.clone()
    for other in other_ranks(rank, root):
        total += rank.recv(other, like=x)
    return total


def reduce(rank: Rank, x: torch.Tensor, root: int = 0) -> torch.Tensor | None:
    """Return the sum of all ranks' `x` on the root, None elsewhere: the broadcast tree, from leaves to root."""
    node = binomial_tree_node(rank.rank, rank.size, root)
    total = x.clone()
    for child in reversed(node.children):
        total += rank.recv(child, like=x)
    if node.parent is None:
        return total
    rank.send(total, node.parent, "reduce")
    return None


def gather(rank: Rank, x: torch.Tensor, root: int = 0) -> list[torch.Tensor] | None:
    """Return the list of all ranks' `x` on the root, in order of rank, None elsewhere. Shapes may differ."""
    if rank.rank != root:
        rank.send(x, root, "gather")
        return None
    return [x.clone() if other == root else rank.recv(other) for other in range(rank.size)]


def scatter(rank: Rank, parts: Sequence[torch.Tensor] | None, root: int = 0) -> torch.Tensor:
    """Return to each rank its array of the root's `parts`, one for each rank; other ranks pass None."""
    if rank.rank != root:
        return rank.recv(root)
    assert parts is not None and len(parts) == rank.size
    for other in other_ranks(rank, root):
        rank.send(parts[other], other, "scatter")
    return parts[root].clone()


def other_ranks(rank: Rank, root: int) -> list[int]:
    """All ranks except the root, in cyclic order from the one after it."""
    return [(root + step) % rank.size for step in range(1, rank.size)]


def wait_all(requests: Sequence[Request]) -> None:
    """Wait until every request is complete."""
    for request in requests:
        request.wait()


def receive(request: Request) -> torch.Tensor:
    """Wait for a receive that was posted earlier and return its array."""
    array = request.wait()
    assert array is not None, "a send has no array"
    return array
