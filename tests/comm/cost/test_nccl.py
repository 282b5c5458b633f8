from __future__ import annotations

import re

import pytest

from mlsys_lab.comm.cost.nccl import (
    BASE_LATENCY_US,
    HOP_LATENCY_US,
    LL128_CHANNEL_GB_PER_S,
    NcclCluster,
    estimate_all_reduce,
    nvls_bound_s,
    payload_fraction,
    rank_estimates,
)
from mlsys_lab.errors import InputError

WIRES = ("nvlink", "pcie", "network")
NODE = NcclCluster(nodes=1, per_node=8, channels=12, channel_bytes_per_s=20e9)
RACKS = NcclCluster(nodes=64, per_node=8, channels=8, channel_bytes_per_s=20e9)


TUNING = """
baseLat { 4.4, 4.4, 0 } { 3.6, 10.0, 8.4 }
hwLat NVLINK { .52, 1.2, 28 } { .47, 1.9, 3.4 }
hwLat PCI { 1.0, 1.9, 28 } { 1.0, 2.5, 5.7 }
hwLat NET { 5.0, 8.5, 50 } { 2.7, 4.0, 9.6 }
"""
"""The tables of NCCL's tuning.cc that the model takes: tree, then ring, each by protocol: LL, LL128, Simple."""


def test_every_latency_is_that_of_nccls_tables():
    rows = [re.findall(r"\d*\.?\d+", line.partition("{")[2]) for line in TUNING.strip().splitlines()]
    base, *hops = [[float(number) for number in row] for row in rows]
    assert list(BASE_LATENCY_US.values()) == base
    ours = [[us for how in ("tree", "ring") for us in HOP_LATENCY_US[wire, how].values()] for wire in WIRES]
    assert ours == hops
    assert {tuple(by_protocol) for by_protocol in HOP_LATENCY_US.values()} == {("LL", "LL128", "Simple")}
    assert LL128_CHANNEL_GB_PER_S == 16.7


def bus_gb_per_s(algorithm, protocol, nodes, bus, channels):
    """What tuning.cc leaves of a bus for an all-reduce, with its figures: eight GPUs a node, not all of them A100."""
    most = 16.7 * channels
    if algorithm == "ring":
        return {"LL": bus * 1.0 / 4.0, "LL128": min(bus * 0.92, most), "Simple": bus}[protocol]
    bus = min(bus * 0.9, 80.0 if nodes > 2 else 110.0)
    ll128 = min(bus * (7.0 / 9.0 if nodes == 1 else 0.915), most * 7.0 / 9.0)
    return {"LL": bus * 1.0 / 3.8, "LL128": ll128, "Simple": bus}[protocol]


@pytest.mark.parametrize("way", BASE_LATENCY_US, ids="-".join)
@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize(("channels", "each"), [(2, 10.0), (2, 60.0), (12, 5.0), (12, 20.0)])
def test_bus_efficiencies_are_those_of_nccls_source(way, nodes, channels, each):
    """Few and many channels, slow and fast ones: each figure decides somewhere."""
    got = estimate_all_reduce(NcclCluster(nodes, 8, channels, each * 1e9), *way).bytes_per_s
    ranks = 8 * nodes
    ratio = ranks / (2 * (ranks - 1)) if way[0] == "ring" else 0.5
    assert got == pytest.approx(1e9 * ratio * bus_gb_per_s(*way, nodes, channels * each, channels), rel=1e-12)


@pytest.mark.parametrize("way", BASE_LATENCY_US, ids="-".join)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("nodes", "per_node"), [(1, 8), (2, 4), (5, 8)])
def test_every_hop_is_waited_for(way, wire, nodes, per_node):
    """A ring goes around twice, a tree up and down; hops within a node are slower in LL where there are others."""
    algorithm, protocol = way
    inside, between = HOP_LATENCY_US[wire, algorithm][protocol], HOP_LATENCY_US["network", algorithm][protocol]
    inside *= 1.8 if nodes > 1 and protocol == "LL" else 1
    hops = {"ring": 2 * nodes * (per_node - 1), "tree": 2 * (per_node - 1)}[algorithm]
    outer = {"ring": 2 * (nodes - 1), "tree": 2 * {1: 0, 2: 1, 5: 2}[nodes]}[algorithm]
    got = estimate_all_reduce(NcclCluster(nodes, per_node, 8, 20e9, wire), algorithm, protocol).latency_s
    assert got == pytest.approx(1e-6 * (BASE_LATENCY_US[way] + hops * inside + outer * between))


def test_small_arrays_take_ll_large_ones_simple_and_ll128_lies_between():
    picks = [rank_estimates(NODE, size)[0] for size in (1e3, 4e6, 4e9)]
    assert [pick.protocol for pick in picks] == ["LL", "LL128", "Simple"]
    assert {pick.algorithm for pick in picks} == {"ring"}


def test_many_nodes_take_trees_until_bandwidth_decides():
    picks = [rank_estimates(RACKS, size)[0].algorithm for size in (1e3, 1e6, 64e9)]
    assert picks == ["tree", "tree", "ring"]


def test_an_estimate_by_hand():
    """8 GPUs, ring, Simple: 8.4 µs and 14 hops of 3.4; the bus's 240 GB/s over 2·7/8."""
    way = estimate_all_reduce(NODE, "ring", "Simple")
    assert way.latency_s == pytest.approx((8.4 + 14 * 3.4) * 1e-6)
    assert way.bytes_per_s == pytest.approx(240e9 / 1.75)
    tree = estimate_all_reduce(RACKS, "tree", "LL")
    assert tree.latency_s == pytest.approx((4.4 + 2 * (7 * 0.52 * 1.8 + 6 * 5.0)) * 1e-6)
    assert tree.bytes_per_s == pytest.approx(80e9 / 3.8 / 2)


def test_payload_and_switches_that_add():
    assert [payload_fraction(protocol) for protocol in ("LL", "LL128", "Simple")] == [0.5, 0.9375, 1.0]
    assert nvls_bound_s(8, 450e9, 450e9) == pytest.approx(9 / 8)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: NcclCluster(1, 1, 1, 1.0), "needs two ranks: got 1"),
        (lambda: NcclCluster(1, 8, 0, 1.0), "nodes, GPUs, channels and a bandwidth"),
        (lambda: nvls_bound_s(8, 1.0, 0.0), "positive bandwidth"),
    ],
)
def test_bad_arguments(call, text):
    with pytest.raises(InputError, match=text):
        call()
