from __future__ import annotations

import itertools

import pytest
import torch

from mlsys_lab.comm import run
from mlsys_lab.comm.collectives import all_reduce
from mlsys_lab.comm.cost import topology
from mlsys_lab.comm.cost.bus_bandwidth import bus_bytes_per_s, bus_factor
from mlsys_lab.comm.cost.congestion import egress_bytes_per_s, replay_s
from mlsys_lab.comm.cost.patterns import Round, ring
from mlsys_lab.comm.cost.selection import predict, select_algorithm
from mlsys_lab.errors import InputError

EXAMPLES = [
    topology.nvlink_island(8, 450e9),
    topology.pcie_tree(8, 25e9),
    topology.rails(2, 4, inside_bytes_per_s=450e9, rail_bytes_per_s=50e9),
    topology.fat_tree(8, 50e9, per_leaf=4, oversubscription=2),
    topology.torus((2, 4), 90e9),
]


@pytest.mark.parametrize("wires", EXAMPLES, ids=lambda wires: wires.name)
def test_every_route_is_made_of_links_that_there_are(wires):
    for a, b in itertools.permutations(range(wires.size), 2):
        assert wires.route(a, b) and set(wires.route(a, b)) <= wires.capacity.keys()
        assert wires.latency_s(a, b) > 0
    assert {link for a, b in itertools.permutations(range(wires.size), 2) for link in wires.route(a, b)} == set(
        wires.capacity
    )


def test_routes_by_hand():
    tree = topology.pcie_tree(4, 25e9)
    assert tree.route(0, 1) == ("0 out", "1 in")
    assert tree.route(0, 3) == ("0 out", "switch 0 out", "switch 1 in", "3 in")
    nodes = topology.rails(2, 2, inside_bytes_per_s=450e9, rail_bytes_per_s=50e9)
    assert nodes.route(0, 3) == ("0 out", "1 in", "1 rail out", "3 rail in")
    assert nodes.route(0, 2) == ("0 rail out", "2 rail in")
    assert nodes.path_bytes_per_s(0, 3) == 50e9 and nodes.latency_s(0, 3) == pytest.approx(6e-6)
    ring_of_five = topology.torus((5,), 1.0)
    assert ring_of_five.route(0, 2) == ("0 axis 0 +", "1 axis 0 +")
    assert ring_of_five.route(0, 3) == ("0 axis 0 -", "4 axis 0 -")
    assert topology.torus((2, 3), 1.0).route(0, 5) == ("0.0 axis 0 +", "1.0 axis 1 -")


@pytest.mark.parametrize("wires", EXAMPLES, ids=lambda wires: wires.name)
def test_predicted_time_of_a_ring_is_that_of_its_messages(wires):
    n = 8 * 1000
    _, ledger = run(all_reduce.all_reduce, [torch.zeros(n)] * wires.size)
    prediction = predict("ring", ring(wires.size), 4 * n, wires)
    assert replay_s(ledger, wires) == pytest.approx(prediction.time_s)


def test_a_round_without_messages_takes_no_time():
    wires = topology.nvlink_island(4, 450e9)
    alone, with_pause = ([*ring(4)], [*ring(4), Round(3, ())])
    assert predict("ring", with_pause, 1e6, wires).time_s == predict("ring", alone, 1e6, wires).time_s


def test_oversubscription_slows_what_crosses_the_spine_and_nothing_else():
    thin, full = (topology.fat_tree(8, 50e9, per_leaf=4, oversubscription=o) for o in (4, 1))
    halving = all_reduce.halving_doubling
    _, ledger = run(halving, [torch.zeros(1 << 16)] * 8)
    assert replay_s(ledger, thin) > 1.5 * replay_s(ledger, full)
    assert predict("ring", ring(8), 1e6, thin) == predict("ring", ring(8), 1e6, full)


def test_selection_goes_from_latency_to_bandwidth_as_arrays_grow():
    nodes = topology.rails(4, 8, inside_bytes_per_s=450e9, rail_bytes_per_s=50e9)
    small, large = select_algorithm(1e3, nodes), select_algorithm(1e9, nodes)
    assert small.algorithm == "halving_doubling" and "bound by latency" in small.explanation
    assert large.algorithm == "hierarchical, islands of 8" and "bound by bandwidth" in large.explanation
    for choice in (small, large):
        times = [prediction.time_s for prediction in choice.predictions]
        assert times == sorted(times)
        assert choice.explanation.startswith(choice.algorithm) and choice.predictions[1].algorithm in choice.explanation


def test_islands_of_every_size_that_divides_the_ranks_are_tried():
    choice = select_algorithm(1e6, topology.nvlink_island(12, 450e9))
    islands = {one.algorithm.rpartition(" ")[2] for one in choice.predictions if "islands" in one.algorithm}
    assert islands == {"2", "3", "4", "6"}


def test_egress_of_a_group_is_that_of_its_narrowest_exit():
    nodes = topology.rails(2, 4, inside_bytes_per_s=450e9, rail_bytes_per_s=50e9)
    assert egress_bytes_per_s(nodes, range(4)) == pytest.approx(4 * 50e9)
    thin = topology.fat_tree(8, 50e9, per_leaf=4, oversubscription=2)
    assert egress_bytes_per_s(thin, range(4)) == pytest.approx(4 * 50e9 / 2)
    # One of four GPUs under a PCIe switch of two: its own port.
    assert egress_bytes_per_s(topology.pcie_tree(4, 25e9), [0]) == pytest.approx(25e9)
    # Rank 0 of a ring of four: its two links, of which the one to the right also goes to the rank opposite.
    assert egress_bytes_per_s(topology.torus((4,), 90e9), [0]) == pytest.approx(3 / 2 * 90e9)


def test_bus_factors():
    assert [bus_factor(name, 8) for name in ("all_reduce", "reduce_scatter", "all_to_all", "reduce")] == [
        1.75,
        0.875,
        0.875,
        1.0,
    ]
    assert bus_bytes_per_s("all_reduce", 8, 1e9, 17.5e-3) == pytest.approx(100e9)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: topology.nvlink_island(0, 1.0), "positive sizes and rates: got ranks=0"),
        (lambda: topology.torus((4, 0), 1.0), "got axis 1=0"),
        (lambda: topology.fat_tree(4, float("nan")), "got bytes_per_s=nan"),
        (lambda: select_algorithm(1e6, topology.nvlink_island(1, 1.0)), "needs two ranks"),
        (
            lambda: egress_bytes_per_s(topology.torus((2,), 1.0), [0, 1]),
            r"must leave some ranks .* out: got \[0, 1\] of 2",
        ),
        (lambda: egress_bytes_per_s(topology.torus((2,), 1.0), [2]), r"got \[2\] of 2"),
        (lambda: bus_factor("allreduce", 8), "did you mean 'all_reduce'"),
        (lambda: bus_factor("all_reduce", 0), "at least one rank"),
        (lambda: bus_bytes_per_s("reduce", 2, 1.0, 0.0), "a positive time"),
        (
            lambda: replay_s(run(all_reduce.all_reduce, [torch.zeros(1)] * 2).ledger, topology.nvlink_island(3, 1.0)),
            "another number of ranks: got 3, expected 2",
        ),
    ],
)
def test_bad_arguments(call, text):
    with pytest.raises(InputError, match=text):
        call()
