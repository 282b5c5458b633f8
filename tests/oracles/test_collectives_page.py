"""What chapter 09 computes and concludes, against published figures and against arithmetic written out here."""

from __future__ import annotations

import re

import pytest

from tests.oracles.catalogue import oracles

PAGE = "09-collectives"

NVLINK = 450e9  # bytes/s in each direction over an H200's eighteen links of 25 GB/s
GIB = 2**30


def exactly(value):
    return pytest.approx(value, rel=1e-12)


COMPUTED = {
    "CO04": lambda page, i: [
        page.FACTORS[name](i["n"])
        for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce")
    ],
    "CO06": lambda page, i: [24e3 / page.wire[name] for name in ("LL", "LL128")],
    "CO07": lambda page, i: [page.ledgers["ring"].steps, page.ledgers["ring"].steps / 2],
    "CO08": lambda page, i: [1e3 * page.p1[name] for name in ("ring", "tree")],
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(page, name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](page, oracle.inputs))


def test_the_bound(page) -> None:
    assert page.nvlink == NVLINK
    assert page.large_s == exactly(2 * 7 / 8 * GIB / NVLINK)
    assert page.small_s == exactly(3e-6)
    assert page.effective == exactly(18 * 20.6e9)
    assert page.half == exactly(1e-6 * NVLINK) and page.ring_half_bytes(8, page.link) == exactly(8e-6 * NVLINK)


def test_what_was_measured_is_faster_than_any_ring_and_slower_than_nvls_could_be(page) -> None:
    """437 GB/s of bus bandwidth, as the chapter once had it for a ring, is more than a ring reaches on these links."""
    seconds = page.measured_s[GIB]
    assert seconds == exactly(1.75 * GIB / 464e9) and page.asked_bus == exactly(464e9)
    nvls_s = page.nvls_bound_s(8, GIB, NVLINK)
    assert nvls_s == exactly(9 / 8 * GIB / NVLINK)
    assert nvls_s < seconds < 1.75 * GIB / NVLINK < 1.75 * GIB / page.effective
    assert page.measured_s[32 * 2**10] == exactly(1.75 * 32 * 2**10 / 3.2e9)
    assert page.ring_busbw < page.effective < page.asked_bus


def test_gain_of_reduction_in_the_switch(page) -> None:
    """Ring 2(p-1)/p of the array through a port, NVLS (p+1)/p."""
    assert [ideal for ideal, _ in page.gains.values()] == [exactly(x) for x in (6 / 5, 8 / 6, 10 / 7, 12 / 8, 14 / 9)]
    assert all(0.8 < got / ideal < 0.87 for ideal, got in list(page.gains.values())[1:])
    assert page.gains[4][0] * page.NVLS_EFFICIENCY == exactly(1.02)
    assert page.nvls_wire == exactly(9 / 8 * 480.7e9 * 8 / 14)


def test_one_shot_and_two_shot(page) -> None:
    """α + 7nβ = 2α + 14/8·nβ, solved for n."""
    n = page.shot_crossover_bytes(8, page.link)
    assert 1e-6 + 7 * n / NVLINK == exactly(2e-6 + 2 * 7 / 8 * n / NVLINK)
    assert page.shot_crossover_bytes(8, page.LinkCost(page.shot_alpha_s, NVLINK)) == exactly(256 * 2**10)


def test_all_to_all(page) -> None:
    assert page.exchanged.steps == 7 and page.exchanged.sent_bytes() == [3500] * 8
    assert page.crossing_s == exactly(56 / 64 * 1e9 / 50e9)
    assert page.dispatch_bytes == 7_340_032


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
    eight_s = 2 * 63 * (5e-6 + 1e9 / 8 / 64 / 50e9)  # every ring leaves each node through another rail
    assert list(page.rails_s.values())[:3] == [exactly(ring_s), exactly(eight_s), exactly(inside_s + across_s)]
    _, eight, islands = (page.predict("", way, page.rails_cross, page.cluster) for way in page.algorithms.values())
    assert eight.time_s == exactly(islands.time_s)
    assert page.per_gpu == exactly(376.60e9 / 8)
    # Neighbours scattered over eight leaves: eight messages on an uplink as wide as two ports.
    assert page.scattered.time_s == exactly(2 * 63 * (4e-6 + 4 * 1e9 / 64 / 50e9))
    assert page.in_order.time_s == exactly(2 * 63 * (4e-6 + 1e9 / 64 / 50e9))


def test_another_job_on_the_same_uplinks(page) -> None:
    """One message of mine and four of theirs on an uplink as wide as two ports: 20 GB/s each, and 50 alone."""
    assert page.alone == pytest.approx(2 * 31 * (4e-6 + 1e9 / 32 / 50e9))
    assert page.shared == pytest.approx(2 * 31 * (4e-6 + 1e9 / 32 / 20e9))


def test_what_nccl_chooses(page) -> None:
    """As NCCL's log says on that node: ring with LL up to 1 MiB, NVLS with Simple from 2 MiB."""
    for size, way in page.picks.items():
        assert way == (("ring", "LL") if size <= 2**20 else ("NVLS", "Simple"))
    assert page.estimate_s(1e3, ("ring", "LL")) == exactly((6.6 + 14 * 0.6) * 1e-6 + 1e3 / (141e9 * 8 / 14))
    assert all(0.65 < ratio < 1.15 for ratio in page.ratios)


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
    assert page.wire == {"LL": 48e3, "LL128": exactly(25.6e3)}
    assert page.p5_sent / 320 == 2 * 3 / 4 / 8
    assert page.p5_ring / 320 == 2 * 31 / 32 / 8
    assert page.p6_half_s == exactly(14 * (1e-6 + 2 * 1e9 / 8 / NVLINK))
    assert len(page.p6_dead.stuck_ranks) == 8
    assert (page.p7.leaf, page.p7.spine, page.p7.total) == (64, 32, 4 * 256 + 64 + 32)
    assert page.p7_egress == [exactly(8 * 50e9), exactly(72 * 50e9)]


def test_the_design(page) -> None:
    port = 376.60e9 / 8
    inside_s, across_s = 1.75 * 16e9 / (18 * 20.6e9), 2 * 15 / 16 * 2e9 / port
    assert (page.p8_inside_s, page.p8_across_s) == (exactly(inside_s), exactly(across_s))
    assert page.p8_ring_s == exactly(2 * 127 / 128 * 2e9 / port)
    assert 16e9 / page.p8_default * page.p8_ring_latency_s > page.p8_backward_s  # default buckets by rings: not hidden
    assert inside_s + across_s < page.p8_backward_s
    assert page.p8_bucket * (inside_s + across_s) / 16e9 == exactly(9 * (14e-6 + 30 * 5e-6))


def test_who_waits_for_whom(page) -> None:
    with pytest.raises(page.DeadlockError, match=re.escape("rank 0 waits to send to rank 1; rank 1 waits to send to")):
        page.run(page.send_then_receive, page.inputs[:3])
    assert [int(x[0]) for x in page.run(page.receive_meanwhile, page.inputs[:3]).results] == [2, 0, 1]
