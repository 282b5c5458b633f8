from __future__ import annotations

import pytest
import torch

from mlsys_lab.comm import run
from mlsys_lab.comm.collectives import all_reduce
from mlsys_lab.comm.collectives.chunks import chunk_lengths
from mlsys_lab.comm.collectives.ring_states import ring_states
from mlsys_lab.errors import InputError


@pytest.mark.parametrize("p", range(2, 8))
def test_sums_travel_to_the_right_and_grow_until_each_rank_has_one_and_then_all(p):
    """By hand: chunk c starts at rank c + 1, gets one rank's numbers in each step, then goes round again, complete."""
    states = ring_states(p)
    assert len(states) == 1 + 2 * (p - 1)
    held = [[{r} for _ in range(p)] for r in range(p)]
    for step, state in enumerate(states[1:]):
        assert state.adds == (step < p - 1)
        assert sorted((one.source, one.destination) for one in state.arrivals) == [(r, (r + 1) % p) for r in range(p)]
        for chunk in range(p):
            source = (chunk + 1 + step) % p
            travelled = {(chunk + 1 + k) % p for k in range(min(step + 1, p))}
            (arrival,) = [one for one in state.arrivals if one.chunk == chunk]
            assert (arrival.source, set(arrival.content)) == (source, travelled)
            held[(source + 1) % p][chunk] = travelled | {(source + 1) % p}
        assert [[set(ranks) for ranks in row] for row in state.held] == held
    assert all(ranks == tuple(range(p)) for row in states[-1].held for ranks in row)


@pytest.mark.parametrize(("p", "n"), [(2, 2), (3, 500), (4, 10), (6, 500)])
def test_bytes_are_those_of_the_ledger(p, n):
    ledger = run(all_reduce.all_reduce, [torch.zeros(n, dtype=torch.int64)] * p).ledger
    arrivals = [one for state in ring_states(p, n) for one in state.arrivals]
    assert len(arrivals) == len(ledger.messages) and sum(one.size_bytes for one in arrivals) == ledger.total_bytes
    lengths = chunk_lengths(n, p)
    assert all(one.size_bytes == 8 * lengths[one.chunk] for one in arrivals)


def test_no_rank_adds_to_what_it_sends_on_in_the_all_gather():
    states = ring_states(5)
    assert all(state.held[one.destination][one.chunk] == one.content for state in states[5:] for one in state.arrivals)


@pytest.mark.parametrize(("ranks", "elements"), [(1, 10), (8, 100), (4, 3)])
def test_what_cannot_be_told_apart_is_refused(ranks, elements):
    with pytest.raises(InputError, match=f"got {ranks} ranks, {elements} elements, expected 2 to 7 ranks"):
        ring_states(ranks, elements)
