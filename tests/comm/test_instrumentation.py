"""Instrumented ranks: counts and records are those of the ledger, and an emulated link delays messages only."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
import torch

from mlsys_lab.comm import Rank, instrumentation, run
from mlsys_lab.comm.collectives.all_reduce import ALGORITHMS, all_reduce
from mlsys_lab.comm.cost.alpha_beta import LinkCost
from mlsys_lab.comm.instrumentation import CLOCK, emulate_link, record_sends

LINK = LinkCost(latency_s=0.02, bytes_per_s=1000.0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_was_sent_is_what_the_ledger_counts_and_the_run_is_no_other(algorithm):
    inputs = [torch.arange(7.0) + rank for rank in range(5)]
    (results, ledger), sent = record_sends(ALGORITHMS[algorithm], inputs)
    plain = run(ALGORITHMS[algorithm], inputs)
    assert ledger.messages == plain.ledger.messages
    assert all(torch.equal(a, b) for a, b in zip(results, plain.results, strict=True))
    assert [sum(array.nbytes for array in arrays) for arrays in sent] == ledger.sent_bytes()


def test_an_array_is_kept_as_it_was_when_it_was_sent():
    def send_then_change(rank, x):
        if rank.rank:
            return rank.recv(0)
        rank.send(x, 1)
        x += 1
        return x

    (results, _), sent = record_sends(send_then_change, [torch.zeros(2), torch.zeros(2)])
    assert results[0].tolist() == [1, 1] and sent[0][0].tolist() == [0, 0] and sent[1] == []


def take_two(rank: Rank, sizes: list[int]) -> list[float]:
    """Seconds from a common start to each of two messages; rank 1 receives."""
    slow = emulate_link(rank, LINK)
    rank.barrier()
    start, times = time.monotonic(), []
    posts = [slow.irecv(0) if rank.rank else slow.isend(torch.zeros(size), 1) for size in sizes]
    for post in posts:
        post.wait()
        times.append(time.monotonic() - start)
    return times


@pytest.mark.parametrize("backend", ["threads", "gloo"])
def test_messages_are_sent_one_after_the_other(backend: str) -> None:
    first_s, both_s = LINK.time_s(1, 40), LINK.time_s(2, 40 + 20)
    (sender, _), ledger = run(take_two, [[10, 5]] * 2, backend=backend)
    assert sender[0] >= first_s and sender[1] >= both_s
    assert ledger.purpose_bytes()[CLOCK] == 2 * 8


@dataclass
class Clock:
    """A clock that advances only by sleeping."""

    now_s: float = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize("busy_s", [0.0, 0.03, 0.5])
def test_a_link_carries_while_its_rank_computes(busy_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(instrumentation, "time", clock)

    def program(rank: Rank, _: None) -> None:
        slow = emulate_link(rank, LINK)
        if rank.rank:
            slow.recv(0)
        else:
            request = slow.isend(torch.zeros(10), 1)
            clock.sleep(busy_s)
            request.wait()

    run(program, [None] * 2)
    assert clock.now_s == pytest.approx(max(busy_s, LINK.time_s(1, 40)))


def test_results_are_those_of_the_bare_ranks() -> None:
    inputs = [torch.arange(7.0) + rank for rank in range(3)]
    slow, _ = run(lambda rank, x: all_reduce(emulate_link(rank, LinkCost(0.0, 1e6)), x), inputs)
    bare, _ = run(all_reduce, inputs)
    assert all(torch.equal(a, b) for a, b in zip(slow, bare, strict=True))
