"""A ring all-reduce step by step: which ranks' numbers each chunk contains, observed in a run of `all_reduce`.

Nothing here knows how a ring works. Rank r fills its array with 2ʳ, shifted by p bits for each chunk, so that the bits
of a sum say which chunk it is and which ranks contributed; the recorded messages say the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import torch

from mlsys_lab.comm.collectives import all_reduce
from mlsys_lab.comm.collectives.chunks import chunk_lengths
from mlsys_lab.comm.instrumentation import record_sends
from mlsys_lab.errors import InputError

Ranks = tuple[int, ...]
MAX_RANKS = 7  # p² bits must fit an int64


@dataclass(frozen=True)
class Arrival:
    """A chunk received from another rank; `content`: the ranks whose numbers were summed in the message."""

    source: int
    destination: int
    chunk: int
    size_bytes: int
    content: Ranks


@dataclass(frozen=True)
class RingState:
    """State after a step: for each rank and chunk, the ranks summed in it; and the messages of the step."""

    held: tuple[tuple[Ranks, ...], ...]
    arrivals: tuple[Arrival, ...]

    @property
    def adds(self) -> bool:
        """Whether receivers added the messages (reduce-scatter) instead of copying them (all-gather)."""
        return any(self.held[one.destination][one.chunk] != one.content for one in self.arrivals)


def ring_states(ranks: int, elements: int = 500) -> list[RingState]:
    """Run a ring all-reduce of int64 arrays and return the state before its first step and after each of them.

    >>> [[len(chunk) for chunk in state.held[0]] for state in ring_states(3)]
    [[1, 1, 1], [1, 2, 1], [3, 2, 1], [3, 2, 3], [3, 3, 3]]
    """
    if not 2 <= ranks <= MAX_RANKS or elements < ranks:
        raise InputError(
            "a ring to show has few ranks and an element for each",
            got=f"{ranks} ranks, {elements} elements",
            expected=f"2 to {MAX_RANKS} ranks",
        )
    lengths = torch.tensor(chunk_lengths(elements, ranks))
    inputs = [(1 << (rank + ranks * torch.arange(ranks))).repeat_interleave(lengths) for rank in range(ranks)]
    (results, ledger), sent = record_sends(all_reduce.all_reduce, inputs)

    outgoing = [iter(arrays) for arrays in sent]
    observed = [(message, *_content(next(outgoing[message.source]), ranks)) for message in ledger.messages]
    final = [[_content(part, ranks)[1] for part in torch.split(out, lengths.tolist())] for out in results]

    def kept(rank: int, chunk: int, step: float) -> Ranks:
        """Ranks summed in a rank's chunk after a step: those in its next message of it, or else in its result."""
        later = (
            content
            for one, sent_chunk, content in observed
            if (one.source, sent_chunk) == (rank, chunk) and one.start > step
        )
        return next(later, final[rank][chunk])

    held: list[list[Ranks]] = [[(rank,)] * ranks for rank in range(ranks)]
    states = [RingState(_frozen(held), ())]
    for step, messages in groupby(observed, key=lambda one: one[0].start):
        arrivals = tuple(
            Arrival(one.source, one.destination, chunk, one.size_bytes, content) for one, chunk, content in messages
        )
        for one in arrivals:
            held[one.destination][one.chunk] = kept(one.destination, one.chunk, step)
        states.append(RingState(_frozen(held), arrivals))
    return states


def _content(array: torch.Tensor, ranks: int) -> tuple[int, Ranks]:
    """Chunk index of an array that was sent, and the ranks summed in it; all of its elements are equal."""
    (value,) = set(array.tolist())
    chunk = (value.bit_length() - 1) // ranks
    return chunk, tuple(rank for rank in range(ranks) if value >> (rank + ranks * chunk) & 1)


def _frozen(held: list[list[Ranks]]) -> tuple[tuple[Ranks, ...], ...]:
    return tuple(tuple(row) for row in held)
