"""What chapter 09 computes and concludes, against published figures and against arithmetic written out here."""

from __future__ import annotations

import re

import pytest

from tests.oracles.catalogue import oracles

PAGE = "09-collectives"

NVLINK = 450e9  # bytes/s each way of an H100's eighteen links of 25 GB/s


def exactly(value):
    return pytest.approx(value, rel=1e-12)


COMPUTED = {
    "CO04": lambda page, i: [
        page.FACTORS[name](i["n"])
        for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce")
    ],
    "CO06": lambda page, i: [24e3 / page.p5[name] for name in ("LL", "LL128")],
    "CO07": lambda page, i: [page.ledgers["ring"].steps, page.ledgers["ring"].steps / 2],
    "CO08": lambda page, i: [1e3 * page.p1[name] for name in ("ring", "tree")],
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(page, name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](page, oracle.inputs))


def test_the_bound(page) -> None:
    assert page.nvlink == NVLINK
    assert page.large_s == exactly(2 * 7 / 8 * 1e9 / NVLINK)
    assert page.small_s == exactly(3e-6)
    assert page.asked_bus == exactly(1.75 * 1e9 / 4e-3)
    assert page.half == exactly(1e-6 * NVLINK) and page.ring_half_bytes(8, page.link) == exactly(8e-6 * NVLINK)


def test_the_ledgers_of_all_forms(page) -> None:
    steps = {name: ledger.steps for name, ledger in page.ledgers.items()}
    assert steps["naive"] == 2 * 7 and steps["tree"] == steps["halving_doubling"] == 2 * 3
    assert page.ledgers["ring"].sent_bytes() == [7000] * 8
    assert page.ledger.sent_bytes() == [28_000] + 7 * [4000]


def test_the_crossovers(page) -> None:
    """2(p-1)α + 2(p-1)/p·nβ = 2⌈log₂p⌉(α + nβ), solved for n."""
    for ranks, rounds in ((16, 4), (64, 6), (512, 9)):
        n = 5e-6 * 50e9 * (ranks - 1 - rounds) / (rounds - (ranks - 1) / ranks)
        assert page.crossover_bytes("tree", "ring", ranks, page.network) == pytest.approx(n, abs=1)


def test_rails_and_leaves(page) -> None:
    ring_s = 2 * 63 * (6e-6 + 1e9 / 64 / 50e9)  # from a node's last GPU to the next one's first: another rail
    inside_s, across_s = 2 * 7 * (1e-6 + 1e9 / 8 / NVLINK), 2 * 7 * (5e-6 + 1e9 / 64 / 50e9)
    assert page.one_ring.time_s == exactly(ring_s)
    assert page.islands.time_s == exactly(inside_s + across_s)
    # Neighbours dealt out to eight leaves: eight messages on an uplink as wide as two ports.
    assert page.in_turn.time_s == exactly(2 * 63 * (4e-6 + 4 * 1e9 / 64 / 50e9))
    assert page.in_order.time_s == exactly(2 * 63 * (4e-6 + 1e9 / 64 / 50e9))


def test_a_neighbour_on_the_same_uplinks(page) -> None:
    """One message of mine and four of theirs on an uplink as wide as two ports: 20 GB/s each, and 50 alone."""
    assert page.alone == pytest.approx(2 * 31 * (4e-6 + 1e9 / 32 / 50e9))
    assert page.beside == pytest.approx(2 * 31 * (4e-6 + 1e9 / 32 / 20e9))


def test_what_nccl_takes(page) -> None:
    assert page.nccl_small.time_s(1e3) == exactly((3.6 + 14 * 0.47) * 1e-6 + 1e3 / (NVLINK / 4 * 8 / 14))
    protocols = [pick.protocol for pick in page.picks.values()]
    assert protocols[0] == "LL" and protocols[-1] == "Simple"
    assert [pick.algorithm for pick in page.picks.values()] == ["ring"] * len(protocols)


def test_one_slow_rank(page) -> None:
    compute_s = 12 * 3 * 4e-3
    assert page.even.end_s == exactly(compute_s + 6e-3)
    assert page.uneven.end_s == exactly(1.3 * compute_s + 6e-3)
    assert page.uneven.exposed_s(0) == exactly(0.3 * compute_s + 6e-3)
    assert 0 < page.jittered(8) < page.jittered(512)
    assert 0.05 < page.jittered_ring(8) < page.jittered_ring(64) < 0.15


def test_problems(page) -> None:
    assert page.p3.sent_bytes() == [4 * 14, 4 * 15, 4 * 16, 4 * 15] and page.p3.total_bytes == 4 * 4 * 15
    assert page.p2_s == exactly(2 * 71 / 72 * 14e9 / 900e9)
    assert page.p4_bus == exactly(180e9 * 15 / 16)
    assert page.p4_bus / 8 < 50e9 / 2
    assert page.p5 == {"LL": 48e3, "LL128": exactly(25.6e3)}
    assert page.p6_sent / 320 == 2 * 3 / 4 / 8
    assert page.p6_ring / 320 == 2 * 31 / 32
    assert page.p7_half.end_s == exactly(14 * (2 * (1e-6 + 1e9 / 8 / NVLINK)))
    assert len(page.p7_dead.stuck_ranks) == 8
    assert (page.p8.leaf, page.p8.spine, page.p8.total) == (64, 32, 4 * 256 + 64 + 32)
    assert page.p8_egress == [exactly(8 * 50e9), exactly(72 * 50e9)]


def test_who_waits_for_whom(page) -> None:
    with pytest.raises(page.DeadlockError, match=re.escape("rank 0 waits to send to rank 1; rank 1 waits to send to")):
        page.run(page.send_then_receive, page.inputs[:3])
    assert [int(x[0]) for x in page.run(page.receive_meanwhile, page.inputs[:3]).results] == [2, 0, 1]
