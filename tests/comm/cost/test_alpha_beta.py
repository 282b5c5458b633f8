from __future__ import annotations

import math

import pytest
import torch

from mlsys_lab.comm import run, schedule
from mlsys_lab.comm.collectives import all_reduce
from mlsys_lab.comm.cost import alpha_beta, patterns
from mlsys_lab.comm.cost.alpha_beta import LinkCost, all_reduce_s, crossover_bytes, lower_bound_s, ring_half_bytes
from mlsys_lab.errors import InputError

LINK = LinkCost(5e-6, 50e9)


@pytest.mark.parametrize("algorithm", ["naive", "tree", "ring", "halving_doubling"])
@pytest.mark.parametrize("p", [2, 3, 4, 8, 9])
def test_formulas_are_what_a_replay_of_the_real_messages_takes(algorithm, p):
    """Every message of a run on threads is given α + n·β; chunks are equal, as the formulas take them to be."""
    n = 5040  # divides by all of these
    _, ledger = run(all_reduce.ALGORITHMS[algorithm], [torch.zeros(n)] * p)
    messages = schedule(ledger.logs, lambda source, destination, size: LINK.time_s(1, size))
    expected = all_reduce_s(algorithm, p, 4 * n, LINK)
    assert max(message.end for message in messages) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("p", [4, 8, 16])
def test_pipelines_beside_a_replay_at_their_number_of_segments(p):
    segments = 16
    chain, double = (
        run(lambda rank, x, form=form: form(rank, x, segments), [torch.zeros(6400)] * p).ledger.steps
        for form in (all_reduce.all_reduce_chain, all_reduce.all_reduce_double_tree)
    )
    assert chain == 2 * (p - 2 + segments)
    perfect = 4 * math.ceil(math.log2(p)) - 4 + 4 * segments
    assert 0.95 * perfect <= double <= 4 / 3 * perfect


@pytest.mark.parametrize("algorithm", alpha_beta.ALL_REDUCE)
@pytest.mark.parametrize("p", range(1, 20))
def test_nothing_beats_the_bound_and_more_bytes_take_longer(algorithm, p):
    times = [all_reduce_s(algorithm, p, size, LINK) for size in (0, 1, 1e3, 1e6, 1e9)]
    assert times == sorted(times)
    for size, time_s in zip((0, 1, 1e3, 1e6, 1e9), times, strict=True):
        assert time_s >= lower_bound_s(p, size, LINK) * (1 - 1e-9)


def test_adding_counts_where_it_has_a_rate():
    slow = LinkCost(0.0, math.inf, add_bytes_per_s=1e9)
    assert all_reduce_s("ring", 4, 4e9, slow) == pytest.approx(3.0)
    assert all_reduce_s("naive", 4, 4e9, slow) == pytest.approx(12.0)


def test_the_crossover_is_where_both_take_as_long():
    for first, second in (("tree", "ring"), ("double_tree", "ring"), ("tree", "halving_doubling")):
        size = crossover_bytes(first, second, 12, LINK)
        if size is not None:
            assert all_reduce_s(first, 12, size, LINK) == pytest.approx(all_reduce_s(second, 12, size, LINK), rel=1e-4)
    assert crossover_bytes("ring", "tree", 16, LINK) is None


@pytest.mark.parametrize("p", [2, 3, 16])
def test_half_the_time_is_latency_at_half_the_rate(p):
    assert LINK.time_s(1, LINK.half_bytes) == pytest.approx(2 * LINK.latency_s)
    assert all_reduce_s("ring", p, ring_half_bytes(p, LINK), LINK) == pytest.approx(2 * 2 * (p - 1) * LINK.latency_s)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ring_half_bytes(1, LINK), "at least two ranks: got 1"),
        (lambda: all_reduce_s("rign", 4, 1, LINK), "unknown all-reduce algorithm: got rign.* did you mean 'ring'"),
        (lambda: all_reduce_s("ring", 0, 1, LINK), "got 0 ranks"),
        (lambda: LinkCost(-1, 1), "a latency of at least 0"),
        (lambda: LinkCost(0, 0), "positive rates"),
    ],
)
def test_bad_arguments(call, text):
    with pytest.raises(InputError, match=text):
        call()


@pytest.mark.parametrize("algorithm", ["naive", "tree", "ring", "halving_doubling"])
@pytest.mark.parametrize("p", [2, 3, 4, 7, 8, 9])
def test_patterns_are_the_messages_of_a_run(algorithm, p):
    n = 5040
    _, ledger = run(all_reduce.ALGORITHMS[algorithm], [torch.zeros(n)] * p)
    pattern = patterns.ALL_REDUCE[algorithm](p)
    assert sum(one.times for one in pattern) == ledger.steps
    by_link: dict[tuple[int, int], float] = {}
    for one in pattern:
        for source, destination, share in one.messages:
            by_link[source, destination] = by_link.get((source, destination), 0.0) + one.times * share * 4 * n
    assert by_link == pytest.approx(ledger.link_bytes())


@pytest.mark.parametrize("algorithm", ["chain", "double_tree"])
@pytest.mark.parametrize("p", [2, 3, 4, 7, 8, 9])
def test_patterns_in_segments_are_the_messages_of_a_run(algorithm, p):
    """Every segment crosses each link once; turns beyond the number of segments fill and drain the pipeline."""
    n, segments = 6400, 16
    _, ledger = run(lambda rank, x: all_reduce.ALGORITHMS[algorithm](rank, x, segments), [torch.zeros(n)] * p)
    pattern = getattr(patterns, algorithm)(p, segments)
    by_link: dict[tuple[int, int], float] = {}
    for one in pattern:
        for source, destination, share in one.messages:
            by_link[source, destination] = by_link.get((source, destination), 0.0) + segments * share * 4 * n
    assert by_link == pytest.approx(ledger.link_bytes())
    turns = {"chain": p - 2 + segments, "double_tree": segments + math.ceil(math.log2(p)) - 1}[algorithm]
    assert [one.times for one in pattern] == [turns] * {"chain": 2, "double_tree": 4}[algorithm]
    if algorithm == "chain":
        assert sum(one.times for one in pattern) == ledger.steps


def test_segments_are_64_where_nothing_is_said():
    for algorithm in ("chain", "double_tree"):
        form = getattr(patterns, algorithm)
        assert patterns.ALL_REDUCE[algorithm](5) == form(5, 64)


@pytest.mark.parametrize(("p", "levels"), [(2, 1), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_a_double_tree_by_hand(p, levels):
    """One piece goes two steps a level, up and down; of very many, a rank sends four for each half of the array."""
    assert alpha_beta.double_tree(p, 1e-6, LINK) == pytest.approx(4 * levels * LINK.latency_s)
    assert alpha_beta.double_tree(p, 1e15, LINK) == pytest.approx(4 * 0.5e15 / LINK.bytes_per_s, rel=0.01)
