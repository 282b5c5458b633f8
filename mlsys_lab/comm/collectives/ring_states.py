"""A ring all-reduce step by step: whose numbers every rank has in each chunk, read from a run of `all_reduce.ring`.

Nothing here knows how a ring works. Rank r puts 2ʳ into every element, moved up by p binary places for each chunk, so
that the bits of a sum say which chunk it is and whose numbers are in it; the arrays that were sent say the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import torch

from mlsys_lab.comm.collectives import all_reduce
from mlsys_lab.comm.collectives.chunks import chunk_lengths
from mlsys_lab.comm.recording import record
from mlsys_lab.errors import InputError

Ranks = tuple[int, ...]
MOST_RANKS = 7  # whose p² bits an int64 holds


@dataclass(frozen=True)
class Arrival:
    """A chunk that has just come from one rank to another; `content`: the ranks whose numbers were in it on its way."""

    source: int
    destination: int
    chunk: int
    size_bytes: int
    content: Ranks


@dataclass(frozen=True)
class RingState:
    """What there is after a step: by rank and chunk, the ranks whose numbers it holds; and what the step brought."""

    held: tuple[tuple[Ranks, ...], ...]
    arrivals: tuple[Arrival, ...]

    @property
    def adds(self) -> bool:
        """Whether receivers added what came (reduce-scatter), rather than took it as it was (all-gather)."""
        return any(self.held[one.destination][one.chunk] != one.content for one in self.arrivals)


def ring_states(ranks: int, elements: int = 500) -> list[RingState]:
    """Run a ring all-reduce of int64 arrays and return the state before its first step and after each of them.

    >>> [[len(chunk) for chunk in state.held[0]] for state in ring_states(3)]
    [[1, 1, 1], [1, 2, 1], [3, 2, 1], [3, 2, 3], [3, 3, 3]]
    """
    if not 2 <= ranks <= MOST_RANKS or elements < ranks:
        raise InputError(
            "a ring to look at has few ranks and an element for each",
            got=f"{ranks} ranks, {elements} elements",
            expected=f"2 to {MOST_RANKS} ranks",
        )
    lengths = torch.tensor(chunk_lengths(elements, ranks))
    inputs = [(1 << (rank + ranks * torch.arange(ranks))).repeat_interleave(lengths) for rank in range(ranks)]
    (results, ledger), sent = record(all_reduce.ring, inputs)

    outgoing = [iter(arrays) for arrays in sent]
    travelled = [(message, *_content(next(outgoing[message.source]), ranks)) for message in ledger.messages]
    final = [[_content(part, ranks)[1] for part in torch.split(out, lengths.tolist())] for out in results]

    def kept(rank: int, chunk: int, step: float) -> Ranks:
        """What a rank has of a chunk after a step: what it sends of it next, or else ends with."""
        later = (
            content
            for one, sent_chunk, content in travelled
            if (one.source, sent_chunk) == (rank, chunk) and one.start > step
        )
        return next(later, final[rank][chunk])

    held: list[list[Ranks]] = [[(rank,)] * ranks for rank in range(ranks)]
    states = [RingState(_frozen(held), ())]
    for step, messages in groupby(travelled, key=lambda one: one[0].start):
        arrivals = tuple(
            Arrival(one.source, one.destination, chunk, one.size_bytes, content) for one, chunk, content in messages
        )
        for one in arrivals:
            held[one.destination][one.chunk] = kept(one.destination, one.chunk, step)
        states.append(RingState(_frozen(held), arrivals))
    return states


def _content(array: torch.Tensor, ranks: int) -> tuple[int, Ranks]:
    """Chunk of an array that was sent, and the ranks whose numbers are in it: all of its elements say the same."""
    (value,) = set(array.tolist())
    chunk = (value.bit_length() - 1) // ranks
    return chunk, tuple(rank for rank in range(ranks) if value >> (rank + ranks * chunk) & 1)


def _frozen(held: list[list[Ranks]]) -> tuple[tuple[Ranks, ...], ...]:
    return tuple(tuple(row) for row in held)
