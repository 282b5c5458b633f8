"""Reduce-scatter, which leaves each rank one chunk of the sum, and its counterpart all-gather.

Letters: p ranks, n elements, cᵢ the length of chunk i.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.comm.collectives.rooted import receive, wait_all
from mlsys_lab.comm.collectives.steps import Steps, run_steps
from mlsys_lab.comm.rank import Rank
from mlsys_lab.validation import require_power_of_two


def reduce_scatter(rank: Rank, x: torch.Tensor, purpose: str = "reduce_scatter") -> torch.Tensor:
    """Return this rank's chunk, flat, of the sum of all ranks' `x`: p - 1 steps, n - c_rank elements sent.

    Partial sums travel to the right, and each rank adds its own array; the last one to add is the chunk's owner.
    """
    return run_steps(reduce_scatter_steps(rank, x, purpose))


def all_gather(rank: Rank, x: torch.Tensor, purpose: str = "all_gather") -> list[torch.Tensor]:
    """Return the list of all ranks' `x`, whose lengths may differ, in order of rank: p - 1 steps around the ring."""
    return run_steps(all_gather_steps(rank, x, purpose))


def reduce_scatter_steps(rank: Rank, x: torch.Tensor, purpose: str) -> Steps[torch.Tensor]:
    """The steps of `reduce_scatter`, yielding while the messages of each step are in flight."""
    chunks = yield from ring_steps(rank, split_chunks(x, rank.size), purpose, range(rank.size - 1))
    return chunks[rank.rank] if rank.size > 1 else chunks[0].clone()


def all_gather_steps(rank: Rank, x: torch.Tensor, purpose: str) -> Steps[list[torch.Tensor]]:
    """The steps of `all_gather`, yielding while the messages of each step are in flight."""
    chunks: list[torch.Tensor | None] = [None] * rank.size
    chunks[rank.rank] = x.clone()
    return (yield from ring_steps(rank, chunks, purpose, range(rank.size - 1, 2 * rank.size - 2)))


def ring_steps(
    rank: Rank, own: Sequence[torch.Tensor | None], purpose: str, steps: range, receive_early: bool = False
) -> Steps[list[torch.Tensor]]:
    """Steps of a ring all-reduce: the first p - 1 are its reduce-scatter, the next p - 1 its all-gather.

    In step s rank r sends chunk r - s - 1 (mod p) to the right: in step 0 its own, later the one that it received in
    the step before, to which it has added its own in the reduce-scatter. `own` has the rank's own chunks, or None where
    it does not know their shape. Returns the chunks that the rank then has.

    receive_early: post all receives before the first send, so that no message waits for its receiver. No other
    collective of the group may then start before the last step has ended.
    """
    p, right, left = rank.size, (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    chunks: list[Any] = list(own)
    incoming, sends = [(rank.rank - step - 2) % p for step in steps], []
    early = [rank.irecv(left, like=own[i]) for i in incoming] if receive_early else []
    for step, i in zip(steps, incoming, strict=True):
        sends.append(rank.isend(chunks[(i + 1) % p], right, purpose))
        received = early.pop(0) if receive_early else rank.irecv(left, like=own[i])
        yield
        chunk = receive(received)
        chunks[i] = chunk.add_(chunks[i]) if step < p - 1 else chunk
    wait_all(sends)
    return chunks


def reduce_scatter_halving(rank: Rank, x: torch.Tensor, purpose: str = "reduce_scatter") -> torch.Tensor:
    """Return this rank's chunk, flat, of the sum of all ranks' `x`: log₂ p steps, n - c_rank elements sent.

    Recursive halving: each step exchanges half of the remaining chunks with a rank at half the distance (Thakur et al.
    2005, §3.2). Raises InputError unless p is a power of two.
    """
    require_power_of_two("recursive halving and doubling need pairs of ranks", rank.size)
    chunks = split_chunks(x.clone(memory_format=torch.contiguous_format), rank.size)
    first, distance = 0, rank.size // 2
    while distance:
        partner = rank.rank ^ distance
        halves = range(first, first + distance), range(first + distance, first + 2 * distance)
        keep, give = halves if rank.rank < partner else halves[::-1]
        request = rank.isend(torch.cat([chunks[i] for i in give]), partner, purpose)
        kept = torch.cat([chunks[i] for i in keep])
        received = rank.recv(partner, like=kept)
        request.wait()
        for i, part in zip(keep, torch.split(received, [len(chunks[i]) for i in keep]), strict=True):
            chunks[i] += part
        first, distance = keep.start, distance // 2
    return chunks[rank.rank].clone()


def all_gather_doubling(rank: Rank, x: torch.Tensor, purpose: str = "all_gather") -> torch.Tensor:
    """Return all ranks' flat `x`, joined in order of rank: log₂ p steps, each of which doubles what a rank has.

    Recursive doubling (Thakur et al. 2005, §3.1). Raises InputError unless p is a power of two.
    """
    require_power_of_two("recursive halving and doubling need pairs of ranks", rank.size)
    have, distance = x.reshape(-1), 1
    while distance < rank.size:
        partner = rank.rank ^ distance
        request = rank.isend(have, partner, purpose)
        received = rank.recv(partner)
        request.wait()
        have = torch.cat([have, received] if rank.rank < partner else [received, have])
        distance *= 2
    return have.clone()
