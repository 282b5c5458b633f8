from __future__ import annotations

import json
import math
import time

import pytest

from mlsys_lab.comm.cost.alpha_beta import LinkCost, ring
from mlsys_lab.comm.simulate import Cluster
from mlsys_lab.comm.simulate.steps import data_parallel_step, ring_all_reduce
from mlsys_lab.errors import InputError

LINK = LinkCost(5e-6, 50e9)


def test_streams_run_side_by_side_and_each_in_order():
    cluster = Cluster(1)
    first = cluster.compute(0, 2.0, "a")
    cluster.collective([0], 3.0, "c", after=[first])
    cluster.compute(0, 1.0, "b")
    last = cluster.collective([0], 1.0, "d")
    timeline = cluster.timeline()
    assert list(zip(timeline.names, timeline.start, timeline.end, strict=True)) == [
        ("a", 0.0, 2.0),
        ("c", 2.0, 5.0),
        ("b", 2.0, 3.0),
        ("d", 5.0, 6.0),
    ]
    assert timeline.end_s == timeline.end[last] == 6.0
    assert (timeline.busy_s(0), timeline.busy_s(0, "collectives"), timeline.exposed_s(0)) == (3.0, 4.0, 3.0)


def test_a_collective_waits_for_its_slowest_rank():
    cluster = Cluster(3, slow={1: 4.0})
    own = [cluster.compute(rank, 1.0) for rank in range(3)]
    cluster.collective(range(3), 0.5, after=own)
    assert cluster.timeline().end_s == 4.5
    assert [cluster.timeline().exposed_s(rank) for rank in range(3)] == [3.5, 0.5, 3.5]


@pytest.mark.parametrize("p", [2, 3, 8, 17])
def test_a_ring_message_by_message_takes_what_the_formula_says(p):
    cluster = Cluster(p)
    last = ring_all_reduce(cluster, range(p), 1e6, LINK)
    timeline = cluster.timeline()
    assert len(timeline.end) == 2 * (p - 1) * p
    assert [timeline.end[task] for task in last] == pytest.approx([ring(p, 1e6, LINK)] * p)


def test_one_late_rank_holds_up_a_ring_by_as_much_and_one_slow_link_by_more():
    p, late = 8, 1e-3
    cluster = Cluster(p)
    start = [cluster.compute(rank, late if rank == 3 else 0.0) for rank in range(p)]
    ring_all_reduce(cluster, range(p), 1e6, LINK, after=start)
    assert cluster.timeline().end_s == pytest.approx(late + ring(p, 1e6, LINK))
    half = Cluster(p, link_rate={(3, 4): 0.5})
    ring_all_reduce(half, range(p), 1e6, LINK)
    assert half.timeline().end_s == pytest.approx(2 * ring(p, 1e6, LINK), rel=0.1)


def test_a_failed_link_stops_all_ranks_and_is_reported():
    cluster = Cluster(4, link_rate={(1, 2): 0.0})
    ring_all_reduce(cluster, range(4), 1e6, LINK)
    timeline = cluster.timeline()
    assert timeline.end_s == math.inf and timeline.stuck_ranks == [0, 1, 2, 3]
    waiting = Cluster(2, link_rate={(0, 1): 0.0})
    waiting.compute(1, 2.0)
    waiting.compute(1, 1.0, after=[waiting.send(0, 1, 1.0)])
    assert waiting.timeline().busy_s(1) == 2.0 and waiting.timeline().exposed_s(1) == math.inf
    alone = Cluster(4, link_rate={(1, 2): 0.0})
    alone.send(0, 3, 1.0)
    alone.send(1, 2, 1.0)
    assert alone.timeline().stuck_ranks == [1, 2]


def test_jitter_is_the_same_for_the_same_seed_and_costs_more_with_more_ranks():
    def step_s(ranks, seed):
        cluster = Cluster(ranks, jitter=0.2, seed=seed)
        data_parallel_step(cluster, layers=4, forward_s=1.0, all_reduce_s=0.1)
        return cluster.timeline().end_s

    assert step_s(4, 1) == step_s(4, 1) != step_s(4, 2)
    few, many = (sum(step_s(ranks, seed) for seed in range(10)) for ranks in (1, 32))
    assert many > 1.1 * few


def test_overlap_hides_all_but_the_last_layers_reduction_when_compute_is_longer():
    times = {}
    for overlap in (True, False):
        cluster = Cluster(4)
        data_parallel_step(cluster, layers=8, forward_s=1.0, all_reduce_s=1.5, overlap=overlap)
        times[overlap] = cluster.timeline().end_s
    assert times == {True: 8 * 3.0 + 1.5, False: 8 * 3.0 + 8 * 1.5}


def test_memory_is_held_from_start_to_end():
    cluster = Cluster(2)
    forward = [cluster.compute(0, 1.0) for _ in range(3)]
    backward = [cluster.compute(0, 2.0) for _ in range(3)]
    for i, task in enumerate(forward):
        cluster.hold(0, 100.0, task, until=backward[-1 - i])
    cluster.hold(0, 7.0, forward[0])
    assert cluster.timeline().peak_bytes(0) == 307.0
    assert cluster.timeline().peak_bytes(1) == 0.0


def test_the_trace_is_what_perfetto_reads(tmp_path):
    cluster = Cluster(2)
    cluster.send(0, 1, 0.25, "hello", after=[cluster.compute(0, 0.5, "work")])
    path = tmp_path / "trace.json"
    cluster.timeline().write_chrome_trace(path)
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"]) for e in spans] == [
        ("work", 0, 0, 0.0, 5e5),
        ("hello", 0, 2, 5e5, 2.5e5),
        ("hello", 1, 3, 5e5, 2.5e5),
    ]
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert named[1, 3] == "receives"


def test_the_figure_has_a_bar_for_each_task():
    cluster = Cluster(2)
    data_parallel_step(cluster, layers=2, forward_s=1.0, all_reduce_s=0.5)
    figure = cluster.timeline().figure(title="a step")
    assert [(bar.name, len(bar.x)) for bar in figure.data] == [("compute", 10), ("collectives", 4)]


def test_a_ring_of_512_ranks_is_simulated_in_little_time():
    """Half a million messages; the limit is CPU time of this process, several times what it takes."""
    before = time.process_time()
    cluster = Cluster(512)
    ring_all_reduce(cluster, range(512), 1e9, LINK)
    assert cluster.timeline().end_s == pytest.approx(ring(512, 1e9, LINK))
    assert time.process_time() - before < 8


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Cluster(0), "at least one rank"),
        (lambda: Cluster(2).compute(2, 1.0), "no such rank in the cluster: got 2, expected 0 to 1"),
        (lambda: Cluster(2).compute(0, -1.0), "a time of at least 0: got -1.0 s"),
        (lambda: Cluster(2).send(0, 1, float("nan")), "got nan s"),
        (lambda: Cluster(2, slow={0: 0.0}), r"positive factor: got slow\[0\]=0.0"),
        (lambda: Cluster(2, link_rate={(0, 1): 2.0}), "from 0 to 1 of its bandwidth"),
    ],
)
def test_bad_arguments(call, text):
    with pytest.raises(InputError, match=text):
        call()
