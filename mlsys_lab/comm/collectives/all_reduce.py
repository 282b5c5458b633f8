"""All-reduce: every rank gets the sum over all ranks. From the simplest algorithm to those of NCCL and MPI libraries.

Each returns a new array and does not change `x`. Letters: n elements, p ranks.
"""

from __future__ import annotations

import torch

from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.comm.collectives.reduce_scatter import (
    all_gather,
    all_gather_doubling,
    reduce_scatter,
    reduce_scatter_halving,
    ring_steps,
)
from mlsys_lab.comm.collectives.rooted import (
    broadcast,
    broadcast_linear,
    receive,
    reduce,
    reduce_linear,
    wait_all,
)
from mlsys_lab.comm.collectives.steps import Steps, run_steps
from mlsys_lab.comm.rank import Rank, Request
from mlsys_lab.comm.trees import TreeNode, double_tree_nodes
from mlsys_lab.errors import InputError

PURPOSE = "all_reduce"


def all_reduce_naive(rank: Rank, x: torch.Tensor) -> torch.Tensor:
    """All ranks send to rank 0, which sums and sends back: 2·(p - 1) steps of n elements, all through one rank."""
    total = reduce_linear(rank, x)
    return broadcast_linear(rank, x if total is None else total)


def all_reduce_tree(rank: Rank, x: torch.Tensor) -> torch.Tensor:
    """Reduce to rank 0 along a binomial tree and broadcast along it: 2·⌈log₂ p⌉ steps of n elements."""
    total = reduce(rank, x)
    return broadcast(rank, x if total is None else total)


def all_reduce(rank: Rank, x: torch.Tensor, purpose: str = PURPOSE) -> torch.Tensor:
    """Ring reduce-scatter, then ring all-gather: 2·(p - 1) steps of about n/p elements, bandwidth-optimal.

    Patarasuk and Yuan 2009. Rank r sends 2n - c_r - c_(r+1) elements, where cᵢ is the length of chunk i.
    """
    return run_steps(all_reduce_steps(rank, x, purpose, receive_early=True))


def all_reduce_steps(rank: Rank, x: torch.Tensor, purpose: str, receive_early: bool = False) -> Steps[torch.Tensor]:
    """The steps of `all_reduce`, yielding while the messages of each step are in flight."""
    steps = range(2 * (rank.size - 1))
    chunks = yield from ring_steps(rank, split_chunks(x, rank.size), purpose, steps, receive_early)
    return torch.cat(chunks).reshape(x.shape)


def halving_doubling(rank: Rank, x: torch.Tensor) -> torch.Tensor:
    """Recursive halving, then recursive doubling: 2·log₂ p steps and as few bytes as the ring (Rabenseifner 2004).

    If p is not a power of two, the odd ranks among the first 2·(p - 2ᵏ) send their arrays to the rank before them,
    which takes part for both among the remaining 2ᵏ and returns the sum: two more steps, of n elements.
    """
    power = 1 << (rank.size.bit_length() - 1)
    extra = rank.size - power
    paired = rank.rank < 2 * extra
    if paired and rank.rank % 2:
        rank.send(x, rank.rank - 1, PURPOSE)
        return rank.recv(rank.rank - 1, like=x)
    if paired:
        x = x + rank.recv(rank.rank + 1, like=x)
    group = rank.group([*range(0, 2 * extra, 2), *range(2 * extra, rank.size)])
    chunk = reduce_scatter_halving(group, x, PURPOSE)
    total = all_gather_doubling(group, chunk, PURPOSE).reshape(x.shape)
    if paired:
        rank.send(total, rank.rank + 1, PURPOSE)
    return total


def all_reduce_chain(rank: Rank, x: torch.Tensor, segments: int = 8) -> torch.Tensor:
    """Pipeline segments down a chain of ranks, summing, and back up: 2·(p - 2 + segments) steps of n/segments."""
    node = TreeNode(
        rank.rank + 1 if rank.rank + 1 < rank.size else None,
        (rank.rank - 1,) if rank.rank else (),
    )
    out = x.clone(memory_format=torch.contiguous_format)
    wait_all(_reduce_and_broadcast(rank, node, split_chunks(out, segments)))
    return out


def all_reduce_double_tree(rank: Rank, x: torch.Tensor, segments: int = 4) -> torch.Tensor:
    """Half the array up and down one binary tree, half on a second one in which the first one's leaves are inner nodes.

    Sanders, Speck and Träff 2009; NCCL's trees between nodes. Steps grow with log₂ p, and segments are pipelined, so
    that bandwidth comes close to the ring's.
    """
    out = x.clone(memory_format=torch.contiguous_format)
    ranks = range(rank.size)
    jobs = [
        (rank.group(ranks), node, split_chunks(half, segments))
        for node, half in zip(double_tree_nodes(rank.rank, rank.size), split_chunks(out, 2), strict=True)
    ]
    leaves = [(group, node.parent, half) for group, node, half in jobs if node.parent is not None and not node.children]
    sends = [group.isend(segment, parent, PURPOSE) for group, parent, half in leaves for segment in half]
    receives = [(segment, group.irecv(parent, like=segment)) for group, parent, half in leaves for segment in half]
    for group, node, half in jobs:
        if node.children:
            sends += _reduce_and_broadcast(group, node, half)
    wait_all(sends)
    for segment, request in receives:
        segment.copy_(receive(request))
    return out


def hierarchical(rank: Rank, x: torch.Tensor, island: int) -> torch.Tensor:
    """Reduce-scatter within islands of `island` ranks (such as nodes), all-reduce between them, all-gather within.

    Between islands each rank sends only 2·(q - 1)/q of its n/island elements, where q is the number of islands. Raises
    InputError unless p is a multiple of `island`.
    """
    if island < 1 or rank.size % island:
        raise InputError("islands must be of one size", got=f"{rank.size} ranks, island={island}")
    base, index = rank.rank - rank.rank % island, rank.rank % island
    inside = rank.group(range(base, base + island))
    across = rank.group(range(index, rank.size, island))
    chunk = all_reduce(across, reduce_scatter(inside, x, PURPOSE))
    return torch.cat(all_gather(inside, chunk, PURPOSE)).reshape(x.shape)


def _reduce_and_broadcast(rank: Rank, node: TreeNode, segments: list[torch.Tensor]) -> list[Request]:
    """Sum segments towards the root of a tree and send the sums back down, in place; return sends still in flight."""
    upward = []
    for segment in segments:
        for child in node.children:
            segment += rank.recv(child, like=segment)
        if node.parent is not None:
            upward.append(rank.isend(segment, node.parent, PURPOSE))
    downward = []
    for i, segment in enumerate(segments):
        if node.parent is not None:
            upward[i].wait()
            segment.copy_(rank.recv(node.parent, like=segment))
        downward += [rank.isend(segment, child, PURPOSE) for child in node.children]
    return downward


ALGORITHMS = {
    "naive": all_reduce_naive,
    "tree": all_reduce_tree,
    "ring": all_reduce,
    "halving_doubling": halving_doubling,
    "chain": all_reduce_chain,
    "double_tree": all_reduce_double_tree,
}
"""All-reduce algorithms that take a rank and an array, by name; `hierarchical` also needs the size of an island."""
