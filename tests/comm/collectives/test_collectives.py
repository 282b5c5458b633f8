"""Every collective on 1 to 9 ranks and lengths that do not divide: values, bytes, messages and steps by closed form."""

from __future__ import annotations

import math

import pytest
import torch

from mlsys_lab.comm import Ledger, RankError, run
from mlsys_lab.comm.collectives import all_reduce, reduce_scatter, rooted
from mlsys_lab.comm.collectives.all_to_all import all_to_all
from mlsys_lab.comm.collectives.chunks import chunk_lengths, split_chunks
from tests.comm import volumes

SIZES = range(1, 10)
POWERS = (1, 2, 4, 8)
LENGTHS = (0, 1, 2, 7, 10, 33, 64)
ELEMENT_BYTES = 8


def draw(n, p):
    generator = torch.Generator().manual_seed(n * 10 + p)
    return [torch.randint(-100, 100, (n,), generator=generator).double() for _ in range(p)]  # sums are exact


def check_volume(ledger: Ledger, volume: volumes.Volume, steps: int | None = None) -> None:
    """Bytes and messages by link, and steps, are those of the closed forms."""
    expected = {link: elements * ELEMENT_BYTES for link, elements in volume.elements.items()}
    assert ledger.link_bytes() == expected
    counts = dict.fromkeys(expected, 0)
    for message in ledger.messages:
        counts[message.source, message.destination] += 1
    assert counts == dict(volume.messages)
    if steps is not None:
        assert ledger.steps == steps


def log2_up(p):
    return (p - 1).bit_length()


STEPS = {
    "naive": lambda p: 2 * (p - 1),
    "tree": lambda p: 2 * log2_up(p),
    "ring": lambda p: 2 * (p - 1),
    "halving_doubling": lambda p: 2 * int(math.log2(p)) + (0 if p in POWERS else 2),
    "chain": lambda p: 2 * (p - 2 + 8) if p > 1 else 0,
    "double_tree": lambda p: None,  # how well two trees interleave has no closed form; bounded in a test below
}


@pytest.mark.parametrize("algorithm", all_reduce.ALGORITHMS)
@pytest.mark.parametrize("p", SIZES)
def test_all_reduce(p, algorithm):
    for n in LENGTHS:
        inputs = draw(n, p)
        kept = [x.clone() for x in inputs]
        results, ledger = run(all_reduce.ALGORITHMS[algorithm], inputs)
        assert all(torch.equal(result, sum(kept)) for result in results)
        assert all(torch.equal(x, before) for x, before in zip(inputs, kept, strict=True))
        check_volume(ledger, volumes.ALL_REDUCE[algorithm](n, p), STEPS[algorithm](p))
        assert ledger.total_bytes == 2 * (p - 1) * n * ELEMENT_BYTES or algorithm == "halving_doubling"


@pytest.mark.parametrize(("p", "island"), [(p, i) for p in SIZES for i in range(1, p + 1) if p % i == 0])
def test_hierarchical_all_reduce(p, island):
    for n in LENGTHS:
        inputs = draw(n, p)
        results, ledger = run(lambda rank, x: all_reduce.hierarchical(rank, x, island), inputs)
        assert all(torch.equal(result, sum(inputs)) for result in results)
        check_volume(ledger, volumes.hierarchical_all_reduce(n, p, island), 2 * (island - 1) + 2 * (p // island - 1))


def test_double_trees_grow_with_the_logarithm_and_both_halves_are_busy():
    steps = {p: run(all_reduce.all_reduce_double_tree, draw(64, p)).ledger.steps for p in (4, 8, 16, 32)}
    assert max(steps[2 * p] - steps[p] for p in (4, 8, 16)) <= 8  # where a ring takes 2p steps more
    assert steps[32] < run(all_reduce.all_reduce, draw(64, 32)).ledger.steps
    sent = volumes.double_tree_all_reduce(1 << 20, 32).sent_elements(32)
    assert max(sent[1:-1]) == 2 << 20 and min(sent) >= 1 << 20


def test_shapes_and_layouts_survive():
    inputs = [torch.arange(12.0).reshape(3, 4).T + r for r in range(4)]
    for algorithm in all_reduce.ALGORITHMS.values():
        for result in run(algorithm, inputs).results:
            assert torch.equal(result, sum(inputs))


@pytest.mark.parametrize("p", SIZES)
def test_broadcast_and_reduce(p):
    for n in LENGTHS:
        for root in {0, p // 2, p - 1}:
            inputs = draw(n, p)
            for function, volume, steps in (
                (rooted.broadcast_linear, volumes.linear_broadcast(n, p, root), p - 1),
                (rooted.broadcast, volumes.tree_broadcast(n, p, root), log2_up(p)),
                (rooted.broadcast_chain, volumes.chain_broadcast(n, p, root), p - 2 + 8 if p > 1 else 0),
            ):
                results, ledger = run(lambda rank, x, f=function, root=root: f(rank, x, root), inputs)
                assert all(torch.equal(result, inputs[root]) for result in results)
                check_volume(ledger, volume, steps)
            for function, volume, steps in (
                (rooted.reduce_linear, volumes.linear_reduce(n, p, root), p - 1),
                (rooted.reduce, volumes.tree_reduce(n, p, root), log2_up(p)),
            ):
                results, ledger = run(lambda rank, x, f=function, root=root: f(rank, x, root), inputs)
                assert torch.equal(results[root], sum(inputs))
                assert [r for r, result in enumerate(results) if result is not None] == [root]
                check_volume(ledger, volume, steps)


@pytest.mark.parametrize("p", SIZES)
def test_gather_and_scatter(p):
    parts = [torch.full((r + 1, 2), float(r), dtype=torch.float64) for r in range(p)]
    for root in {0, p - 1}:
        results, ledger = run(lambda rank, x, root=root: rooted.gather(rank, x, root), parts)
        assert [x.tolist() for x in results[root]] == [x.tolist() for x in parts]
        assert ledger.total_bytes == sum(x.nbytes for r, x in enumerate(parts) if r != root)
        given = [parts if r == root else None for r in range(p)]
        results, ledger = run(lambda rank, x, root=root: rooted.scatter(rank, x, root), given)
        assert [x.tolist() for x in results] == [x.tolist() for x in parts]
        assert ledger.steps == p - 1


@pytest.mark.parametrize("p", SIZES)
def test_reduce_scatter_and_all_gather(p):
    for n in LENGTHS:
        inputs, lengths = draw(n, p), chunk_lengths(n, p)
        expected = split_chunks(sum(inputs), p)
        results, ledger = run(reduce_scatter.reduce_scatter, inputs)
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
        check_volume(ledger, volumes.ring_reduce_scatter(n, p), p - 1)
        results, ledger = run(reduce_scatter.all_gather, expected)
        assert all(torch.equal(torch.cat(parts), sum(inputs)) for parts in results)
        check_volume(ledger, volumes.ring_all_gather(lengths), p - 1)
        if p in POWERS:
            results, ledger = run(reduce_scatter.reduce_scatter_halving, inputs)
            assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
            check_volume(ledger, volumes.halving_reduce_scatter(n, p), log2_up(p))
            results, ledger = run(reduce_scatter.all_gather_doubling, expected)
            assert all(torch.equal(whole, sum(inputs)) for whole in results)
            check_volume(ledger, volumes.doubling_all_gather(lengths), log2_up(p))


@pytest.mark.parametrize("p", SIZES)
def test_all_to_all(p):
    lengths = [[(3 * a + 5 * b) % 7 for b in range(p)] for a in range(p)]
    inputs = [
        [torch.full((length,), float(10 * a + b), dtype=torch.float64) for b, length in enumerate(row)]
        for a, row in enumerate(lengths)
    ]
    results, ledger = run(all_to_all, inputs)
    for b, received in enumerate(results):
        assert [x.tolist() for x in received] == [inputs[a][b].tolist() for a in range(p)]
    check_volume(ledger, volumes.all_to_all(lengths), p - 1)


def test_mismatches_are_one_line():
    with pytest.raises(RankError, match="need pairs of ranks: got 3, expected a power of two"):
        run(reduce_scatter.reduce_scatter_halving, draw(4, 3))
    with pytest.raises(RankError, match="islands must be of one size: got 6 ranks, island=4"):
        run(lambda rank, x: all_reduce.hierarchical(rank, x, 4), draw(4, 6))
    with pytest.raises(RankError, match="an array for each rank: got 2, expected 3"):
        run(all_to_all, [draw(1, 2)] * 3)
