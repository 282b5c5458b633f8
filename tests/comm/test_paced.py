"""A paced link: no message comes before the link has carried it, and nothing else changes."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
import torch

from mlsys_lab.comm import Rank, paced, run
from mlsys_lab.comm.collectives.all_reduce import ring
from mlsys_lab.comm.cost.alpha_beta import LinkCost
from mlsys_lab.comm.paced import CLOCK, pace

LINK = LinkCost(latency_s=0.02, bytes_per_s=1000.0)


def take_two(rank: Rank, sizes: list[int]) -> list[float]:
    """Seconds from the posts, which both ranks begin together, to each of two messages; rank 1 receives."""
    slow = pace(rank, LINK)
    rank.barrier()
    start, times = time.monotonic(), []
    posts = [slow.irecv(0) if rank.rank else slow.isend(torch.zeros(size), 1) for size in sizes]
    for post in posts:
        post.wait()
        times.append(time.monotonic() - start)
    return times


@pytest.mark.parametrize("world", ["threads", "gloo"])
def test_messages_go_one_behind_the_other(world: str) -> None:
    first_s, both_s = LINK.time_s(1, 40), LINK.time_s(2, 40 + 20)
    (sender, _), ledger = run(take_two, [[10, 5]] * 2, world=world)
    assert sender[0] >= first_s and sender[1] >= both_s
    assert ledger.purpose_bytes()[CLOCK] == 2 * 8


@dataclass
class Clock:
    """A clock that goes on only where somebody sleeps."""

    now_s: float = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize("busy_s", [0.0, 0.03, 0.5])
def test_a_link_carries_while_its_rank_computes(busy_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(paced, "time", clock)

    def program(rank: Rank, _: None) -> None:
        slow = pace(rank, LINK)
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
    slow, _ = run(lambda rank, x: ring(pace(rank, LinkCost(0.0, 1e6)), x), inputs)
    bare, _ = run(ring, inputs)
    assert all(torch.equal(a, b) for a, b in zip(slow, bare, strict=True))
