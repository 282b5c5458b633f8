"""Published figures on communication that closed forms and topologies reach."""

from __future__ import annotations

import math

import pytest

from mlsys_lab.comm.cost.alpha_beta import LinkCost, all_reduce_s, ring_half_bytes
from mlsys_lab.comm.cost.bus_bandwidth import bus_factor
from mlsys_lab.comm.cost.congestion import egress_bytes_per_s
from mlsys_lab.comm.cost.nccl import payload_fraction
from mlsys_lab.comm.cost.switches import count_switches
from mlsys_lab.comm.cost.topology import rails
from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.flops.communication import (
    all_reduce_bytes,
    all_to_all_link_bytes,
    critical_tokens,
    gather_bytes,
    partial_sums_width,
    ring_link_bytes,
    ring_steps,
    tensor_parallel_bytes,
    torus_link_bytes,
    ulysses_bytes,
)
from mlsys_lab.flops.einsum import Einsum, replication
from mlsys_lab.flops.layout import Layout
from tests.oracles.catalogue import oracles

MANY = 2**60
"""Ranks: so many that (n - 1)/n is 1, as a source has it that takes bytes over bandwidth."""


def gathered(i):
    return math.prod(i["shape"]) * i["bytes"]


def data_parallel(i):
    dense = [critical_tokens(i["C"], W) for W in i["W"]]
    count, active = i["experts"]
    return [*dense, critical_tokens(i["C"], i["W"][1], active_share=active / count)]


def bandwidth_gb(i):
    """Bytes of the gathered array over the time of the level."""
    levels = ((i["gpus"], i["gpu_W"]), (i["nodes"], i["node_W"]))
    return [W / gather_bytes(1, ranks) / 1e9 for ranks, W in levels]


def link_traffic(i):
    one_way = [count(1, i["D"], both_ways=False) for count in (ring_link_bytes, all_to_all_link_bytes)]
    large = all_to_all_link_bytes(1, MANY) / ring_link_bytes(1, MANY)
    return [*one_way, one_way[1] / one_way[0], large]


def with_and_without_the_closing_link(i):
    """The source takes a ring for a long one. Without the link that closes it everything goes one way to either end."""
    ring, line = ring_link_bytes(gathered(i), MANY), ring_link_bytes(gathered(i), i["devices"], both_ways=False)
    return [1e6 * sent_bytes / i["W"] for sent_bytes in (ring, line)]


def steps_one_way(i):
    steps = ring_steps(i["k"], both_ways=False)
    return [2 * steps, steps]


def without_pipelining(i):
    link = LinkCost(i["alpha"], i["bandwidth"])
    return [1e3 * all_reduce_s(form, i["p"], i["n_bytes"], link) for form in ("ring", "tree")]


def over_axes_of_a_torus(i):
    """AllGather over X, over X and Y, AllReduce over Z; rings are taken for long ones, W is of both directions."""
    array, mesh = Einsum.parse("bd->bd", b=i["B"], d=i["D"]), i["mesh"]
    over_y, over_xy = array.shard(mesh, {"d": "Y"}), array.shard(mesh, {"b": "X", "d": "Y"})
    gathered = [(over_y, [MANY], 1), (array, [MANY, MANY], 1), (over_xy, [MANY], 2)]
    return [
        1e6 * times * torus_link_bytes(math.prod(part.shape) * i["bytes"], axes) / (i["W"] / 2)
        for part, axes, times in gathered
    ]


def superpod(i):
    switches = count_switches(i["nodes"], i["gpus_a_node"], inside=i["nvswitches_a_node"], ports=i["ports"])
    racks = rails(2, i["gb200_gpus"], inside_bytes_per_s=i["gb200_W"], rail_bytes_per_s=i["port_W"])
    egress = egress_bytes_per_s(racks, range(i["gb200_gpus"])) / 1e12
    return [switches.inside, switches.leaf, switches.spine, switches.total, egress]


def long_sequence(i):
    """The sources count numbers, not bytes, take P - 1 for P, and keep a head's width of 128."""
    config = TransformerConfig("", 1, i["h"], i["h"] // 128, 4 * i["h"], 1, i["N"])
    own = Layout(context=i["P"]).rank_tokens(i["N"])
    exchanged = ulysses_bytes(config, own, MANY, layers=1, element_bytes=1)
    return [exchanged, tensor_parallel_bytes(config, i["N"], MANY, layers=1, element_bytes=1, training=False)]


NCCL_TESTS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce")
COMPUTED = {
    "SH01": lambda i: [replication(i["mesh"], {"i": "".join(i["divided_over"])})],
    "SH02": over_axes_of_a_torus,
    "SH03": lambda i: [ring_steps(i["devices"]) * i["hop_us"]],
    "SH04": lambda i: [partial_sums_width(i["C_over_W"], 1)],
    "SH05": link_traffic,
    "SH06": with_and_without_the_closing_link,
    "CO01": lambda i: [1e3 * gather_bytes(gathered(i), i["devices"]) / i["W"]],
    "CO02": lambda i: [1e6 * gather_bytes(gathered(i), ranks) / i["W"] for ranks in (MANY, i["devices"])],
    "CO04": lambda i: [bus_factor(name, i["n"]) for name in NCCL_TESTS],
    "CO05": lambda i: [1e3 * all_reduce_bytes(i["bytes"], i["n"]) / i["W"]],
    "CO06": lambda i: [payload_fraction(protocol) for protocol in ("LL", "LL128")],
    "CO07": steps_one_way,
    "CO08": without_pipelining,
    "CO09": data_parallel,
    "CO10": lambda i: [critical_tokens(i["C"], W) for W in i["W"]],
    "CO11": bandwidth_gb,
    "CO13": long_sequence,
    "CO14": superpod,
    "IN11": lambda i: [ring_half_bytes(i["devices"], LinkCost(1e-6 * i["hop_us"], i["W"])) / 1e3],
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](oracle.inputs))


def test_sh02_contradicts_how_its_array_is_divided() -> None:
    """An AllReduce of S bytes takes 2S/W in the source, whose S is the whole array, of which X and Y take parts."""
    oracle = oracles()["SH02"]
    i = oracle.inputs
    whole = Einsum.parse("bd->bd", b=i["B"], d=i["D"])
    part = whole.shard(i["mesh"], {"b": "X", "d": "Y"})
    for array, figures in ((whole, oracle.printed), (part, oracle.expected)):
        sent_bytes = all_reduce_bytes(math.prod(array.shape) * i["bytes"], MANY)
        assert 1e6 * sent_bytes / i["W"] == pytest.approx(figures[2], rel=oracle.rel_tol)


def test_in05_contradicts_its_own_square() -> None:
    """Weights divided X ways along D and n/X along F: the best X by search, then the n at which it beats 4/3."""
    oracle = oracles()["IN05"]
    one_way = 4 / 3  # of B·D/W, over three axes

    def two_ways(chips: int) -> float:
        return min(2 * (1 / X + 8 * X / chips) for X in (chips ** (k / 1000) for k in range(1001)))

    least, factor = oracle.expected
    assert two_ways(1000) * math.sqrt(1000) == pytest.approx(factor, rel=0.001)
    assert two_ways(least - 1) > one_way > two_ways(least + 1)
    assert two_ways(oracle.printed[0]) < 0.95 * one_way
