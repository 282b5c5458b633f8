"""Published figures on TPUs, from the table of devices and the roofline."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import date

import pytest

from mlsys_lab.flops.communication import gather_bytes
from mlsys_lab.flops.compute import two_n
from mlsys_lab.flops.einsum import Einsum
from mlsys_lab.flops.roofline import Bound, bound, bound_on, critical_batch, matmul_work
from mlsys_lab.hardware import Device, Link, device
from tests.oracles.catalogue import oracles
from tests.oracles.systolic import SystolicArrays


def compute_bound_from(work: Callable[[float], Bound]) -> float:
    """The batch from which the work is limited by compute, by bisection."""
    low, high = 1.0, 2.0**20
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if work(middle).limit == "compute" else (middle, high)
    return high


def load_ms(i):
    v4 = replace(device("TPU v4"), memory_bandwidth_bytes_per_s=i["hbm"])
    one_token = bound_on(v4, "bf16", two_n(i["N"], 1) / i["chips"], i["N"] * i["bytes"] / i["chips"])
    return [1e3 * one_token.time_s]


def pods(i):
    found = []
    for name in ("v5e", "v5p"):
        chip, chips = device(f"TPU {name}"), math.prod(i[name]["shape"])
        found += [chips / i[name]["chips_a_host"], chips * chip.units]
        found += [chips * chip.peak("bf16"), chips * chip.memory_bytes / 1e12]
    return found


def int8_batch(i):
    def from_memory(bandwidth: float) -> float:
        roofs = {"peak_flops_per_s": i["ops"], "bandwidth_bytes_per_s": bandwidth}
        return compute_bound_from(lambda B: bound(*matmul_work(B, i["out"], i["inp"], 1), **roofs))

    return [from_memory(i["hbm"]), from_memory(i["vmem"] * i["hbm"])]


def corner_to_corner(i, size_bytes=None):
    ports = Link("ICI", i["ports"], i["link"])
    first_us, sent = i["hops"] * i["hop_us"], size_bytes or math.prod(i["shape"]) * i["bytes"]
    transfer_us = 1e6 * sent / ports.per_direction_bytes_per_s
    return [first_us, transfer_us, first_us + transfer_us]


def gather_ms(i, array_bytes=None):
    size, ports = array_bytes or i["array_bytes"], Link("ICI", i["ports"], i["link"])
    product = Einsum.parse("bd,df->bf", b=i["rows"], d=i["n"], f=i["n"])
    over_pcie, from_hbm = size / i["chips"] / i["pcie"], size / i["hbm"]
    over_ici = gather_bytes(size, i["chips"]) / ports.per_direction_bytes_per_s
    return [1e3 * time_s for time_s in (over_pcie, over_ici, from_hbm, product.flops / i["flops"])]


def tpu_v1(i):
    v1 = Device(
        name="TPU v1",
        kind="tpu",
        year=2015,
        peaks={"int8": SystolicArrays(1, math.isqrt(i["macs"]), i["clock"]).peak_flops_per_s},
        memory_bytes=8 * 2**30,
        memory_bandwidth_bytes_per_s=i["bw"],
        units=1,
        source="https://arxiv.org/abs/1704.04760",
        checked=date(2026, 11, 21),
    )
    return [v1.peak("int8") / 1e12, v1.ridge_point("int8") / 2]


COMPUTED = {
    "TP02": load_ms,
    "TP03": pods,
    "TP04": lambda i: [critical_batch(i["flops"] / i["pcie"])],
    "TP05": int8_batch,
    "TP06": corner_to_corner,
    "TP07": gather_ms,
    "TP08": tpu_v1,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](oracle.inputs))


def test_tp05_contradicts_its_own_inputs_by_rounding() -> None:
    oracle = oracles()["TP05"]
    i, rounded = oracle.inputs, oracle.rounded
    roofs = {"peak_flops_per_s": i["ops"], "bandwidth_bytes_per_s": i["hbm"]}

    def work(B: float) -> Bound:
        return bound(rounded["ops_a_row"] * B, rounded["weight_bytes"] + rounded["bytes_a_row"] * B, **roofs)

    assert compute_bound_from(work) == pytest.approx(oracle.printed[0], rel=0.001)
    assert int8_batch(i)[0] < 0.98 * oracle.printed[0]


def test_tp06_contradicts_its_own_shape_by_rounding() -> None:
    oracle = oracles()["TP06"]
    rounded = corner_to_corner(oracle.inputs, oracle.rounded["size_bytes"])
    assert [math.floor(us) for us in rounded] == oracle.printed


def test_tp07_contradicts_itself_on_the_size_of_the_array() -> None:
    oracle = oracles()["TP07"]
    i = oracle.inputs
    assert gather_ms(i, array_bytes=i["n"] ** 2) == pytest.approx(oracle.arithmetic, rel=0.001)
    assert i["n"] ** 2 / i["array_bytes"] == pytest.approx(1.07, rel=0.005)


def test_tp08_has_twice_the_ridge_in_operations() -> None:
    assert 2 * tpu_v1(oracles()["TP08"].inputs)[1] == pytest.approx(2699, rel=0.001)
