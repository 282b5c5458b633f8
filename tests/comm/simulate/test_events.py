"""Clusters on a topology, whose transfers share links: against numbers by hand and the model of rounds."""

from __future__ import annotations

import math
import random
import time

import pytest

from mlsys_lab.comm.cost import patterns, topology
from mlsys_lab.comm.cost.alpha_beta import LinkCost
from mlsys_lab.comm.cost.selection import predict
from mlsys_lab.comm.cost.topology import Topology
from mlsys_lab.comm.simulate import Cluster
from mlsys_lab.comm.simulate.steps import ring_all_reduce
from mlsys_lab.errors import InputError

TRUNK = Topology(
    "pairs at both ends of a trunk of 10 bytes/s",
    4,
    {"trunk": 10.0, **{f"{rank} {way}": 100.0 for rank in range(4) for way in ("out", "in")}},
    lambda a, b: (f"{a} out", "trunk", f"{b} in"),
    lambda a, b: 1.0,
)


def ends(cluster: Cluster) -> list[float]:
    return list(cluster.timeline().end)


def test_a_transfer_alone_takes_its_latency_and_the_narrowest_link():
    cluster = Cluster(4, topology=TRUNK)
    cluster.transfer(0, 2, 50.0)
    assert ends(cluster) == [1.0 + 5.0]
    cluster.transfer(1, 3, 0.0, after=[0])
    assert ends(cluster) == [6.0, 7.0]


def test_two_at_once_share_the_trunk_until_one_has_ended():
    """100 and 50 bytes at 5 each: after 10 s the shorter has ended, and 50 of the longer have all of the trunk."""
    cluster = Cluster(4, topology=TRUNK)
    cluster.transfer(0, 2, 100.0)
    cluster.transfer(1, 3, 50.0)
    assert ends(cluster) == [1.0 + 10.0 + 5.0, 1.0 + 10.0]


def test_a_later_transfer_slows_only_the_remaining_bytes():
    """40 bytes have gone when the second comes; then 60 and 50 at 5 each, and 10 bytes alone."""
    cluster = Cluster(4, topology=TRUNK)
    cluster.transfer(0, 2, 100.0)
    cluster.transfer(1, 3, 50.0, after=[cluster.compute(1, 4.0)])
    assert ends(cluster) == [16.0, 4.0, 15.0]


def test_a_rank_sends_one_message_at_a_time_in_its_order():
    cluster = Cluster(4, topology=TRUNK)
    cluster.transfer(0, 2, 50.0)
    cluster.transfer(0, 3, 20.0)
    assert cluster.timeline().start == [0.0, 6.0] and ends(cluster) == [6.0, 9.0]


def test_uplinks_half_as_wide_as_their_ports_double_the_time_of_two_and_not_of_one():
    thin = topology.fat_tree(4, 50e9, latency_s=1e-6, per_leaf=2, oversubscription=2)
    cluster = Cluster(4, topology=thin)
    for pair in ((0, 2), (1, 3)):
        cluster.transfer(*pair, 1e9)
    assert ends(cluster) == pytest.approx([2e-6 + 2 * 0.02] * 2)
    one = Cluster(4, topology=thin)
    one.transfer(0, 2, 1e9)
    assert ends(one) == pytest.approx([2e-6 + 0.02])


DEALT = [leaf * 8 + place for place in range(8) for leaf in range(8)]


@pytest.mark.parametrize(
    ("wires", "order", "steps_s"),
    [
        (topology.nvlink_island(8, 450e9), range(8), 1e-6 + 1e9 / 8 / 450e9),
        (topology.torus((6,), 90e9), range(6), 1e-6 + 1e9 / 6 / 90e9),
        # Neighbours dealt out to eight leaves: eight messages on an uplink as wide as two ports.
        (topology.fat_tree(64, 50e9, oversubscription=4), DEALT, 4e-6 + 4 * 1e9 / 64 / 50e9),
    ],
    ids=lambda case: getattr(case, "name", ""),
)
def test_a_ring_takes_what_its_rounds_take(wires, order, steps_s):
    cluster = Cluster(wires.size, topology=wires)
    ring_all_reduce(cluster, order, 1e9)
    assert cluster.timeline().end_s == pytest.approx(2 * (wires.size - 1) * steps_s)
    if list(order) == list(range(wires.size)):
        assert cluster.timeline().end_s == pytest.approx(predict("ring", patterns.ring(wires.size), 1e9, wires).time_s)


def test_two_rings_on_one_tree_contend_for_shared_links():
    """Each ring has one rank on each of two leaves, and an uplink as wide as one port: both halve it."""
    thin = topology.fat_tree(4, 50e9, latency_s=1e-6, per_leaf=2, oversubscription=2)
    alone, both = Cluster(4, topology=thin), Cluster(4, topology=thin)
    ring_all_reduce(alone, [0, 2], 1e9)
    for ranks in ([0, 2], [1, 3]):
        ring_all_reduce(both, ranks, 1e9)
    assert alone.timeline().end_s == pytest.approx(2 * (2e-6 + 0.5e9 / 50e9))
    assert both.timeline().end_s == pytest.approx(2 * (2e-6 + 0.5e9 / 25e9))


@pytest.mark.parametrize("seed", range(20))
def test_without_transfers_a_topology_changes_nothing(seed):
    """Random programs in one pass and from event to event: the same starts and ends."""
    rng = random.Random(seed)
    plain, wired = (
        Cluster(4, slow={2: 1.5}, jitter=0.2, link_jitter=0.1, seed=seed, topology=wires) for wires in (None, TRUNK)
    )
    for task in range(60):
        after = rng.sample(range(task), min(task, rng.randrange(4)))
        seconds = rng.choice([0.0, 0.5, 1.0, 1.7])
        kind, ranks = rng.randrange(3), rng.sample(range(4), 2)
        for cluster in (plain, wired):
            if kind == 0:
                cluster.compute(ranks[0], seconds, after=after)
            elif kind == 1:
                cluster.collective(ranks, seconds, after=after)
            else:
                cluster.send(*ranks, seconds, after=after)
    assert plain.timeline().start == wired.timeline().start
    assert plain.timeline().end == wired.timeline().end


def test_slow_and_failed_links_by_name():
    half = Cluster(4, topology=TRUNK, link_rate={"trunk": 0.5})
    half.transfer(0, 2, 50.0)
    assert ends(half) == [1.0 + 10.0]
    dead = Cluster(4, topology=TRUNK, link_rate={"2 in": 0.0})
    first, second = dead.transfer(0, 2, 50.0), dead.transfer(1, 3, 50.0)
    dead.compute(0, 1.0, after=[second])
    last = dead.compute(3, 1.0, after=[first])
    timeline = dead.timeline()
    # What cannot move holds no bandwidth of the trunk.
    assert timeline.end[:3] == [math.inf, 6.0, 7.0] and timeline.start[last] == math.inf
    assert timeline.stuck_ranks == [0, 2, 3]


def test_link_jitter_depends_on_the_seed_only_and_does_not_change_compute():
    def run(wires, jitter, seed):
        cluster = Cluster(4, topology=wires, jitter=0.1, link_jitter=jitter, seed=seed)
        start = [cluster.compute(rank, 1.0) for rank in range(4)]
        ring_all_reduce(cluster, range(4), 40.0, None if wires else LinkCost(1.0, 10.0), after=start)
        return cluster.timeline()

    for wires in (None, TRUNK):
        assert run(wires, 0.3, 1).end == run(wires, 0.3, 1).end != run(wires, 0.3, 2).end
        assert run(wires, 0.3, 1).end[:4] == run(wires, 0.0, 1).end[:4]
    # On links of their own each rank waits for the slowest message before it.
    assert sum(run(None, 0.3, seed).end_s - run(None, 0.0, seed).end_s for seed in range(20)) > 0


def test_one_message_s_jitter_is_a_factor_of_its_time_alone():
    cluster = Cluster(4, topology=TRUNK, link_jitter=0.5, seed=3)
    cluster.transfer(0, 2, 50.0)
    wire = Cluster(4, link_jitter=0.5, seed=3)
    wire.send(0, 2, 6.0)
    assert ends(cluster) == pytest.approx(ends(wire)) and ends(wire) != [6.0]


def test_a_ring_of_128_ranks_with_shared_links_is_simulated_in_little_time():
    """32,512 transfers; the limit is CPU time of this process, several times what it takes."""
    before = time.process_time()
    cluster = Cluster(128, topology=topology.nvlink_island(128, 50e9))
    ring_all_reduce(cluster, range(128), 1e9)
    assert cluster.timeline().end_s == pytest.approx(2 * 127 * (1e-6 + 1e9 / 128 / 50e9))
    assert time.process_time() - before < 6


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Cluster(2, topology=TRUNK), "another number of ranks: got 4, expected 2"),
        (lambda: Cluster(2).transfer(0, 1, 1.0), "a transfer needs a topology: got none"),
        (lambda: Cluster(4, topology=TRUNK).transfer(0, 0, 1.0), "a rank sends to another rank: got from 0 to 0"),
        (lambda: Cluster(4, topology=TRUNK).transfer(0, 1, math.inf), "a number of bytes of at least 0: got inf"),
        (lambda: Cluster(4, topology=TRUNK, link_rate={"trunc": 0.5}), "got trunc; help: did you mean 'trunk'"),
        (lambda: Cluster(4, topology=TRUNK, link_rate={(0, 1): 0.5}), r"unknown link in the topology: got \(0, 1\)"),
        (lambda: Cluster(4, link_rate={"trunk": 0.5}), r"got trunk, expected \(source, destination\)"),
        (lambda: Cluster(2, link_rate={(0, 2): 0.5}), "no such rank in the cluster: got 2"),
        (lambda: Cluster(2, link_jitter=-1.0), "a jitter of at least 0: got 2, 0.0, -1.0"),
    ],
)
def test_bad_arguments(call, text):
    with pytest.raises(InputError, match=text):
        call()
