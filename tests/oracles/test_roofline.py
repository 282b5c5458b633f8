"""Published intensities and ridge points, from the einsum algebra, the roofline and the table of devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlsys_lab.flops.communication import all_reduce_bytes
from mlsys_lab.flops.einsum import Einsum
from mlsys_lab.flops.peaks import peak_flops_per_s
from mlsys_lab.flops.roofline import bound, bound_on, critical_batch
from mlsys_lab.hardware import Device, device
from tests.oracles.catalogue import oracles


def as_published(name: str, precision: str, peak: float, bandwidth: float) -> Device:
    """A row of the table with the peak and bandwidth that the source starts from."""
    return replace(device(name), peaks={precision: peak}, memory_bandwidth_bytes_per_s=bandwidth)


def linear(i):
    return [Einsum.parse("bd,df->bf", b=i["batch"], d=i["inp"], f=i["out"]).intensity(i["bytes"])]


def pointwise(i):
    return [bound_on(device("V100"), "fp16", i["ops"], i["bytes"]).intensity]


def square(i):
    return [Einsum.parse("ij,jk->ik", dict.fromkeys("ijk", i["n"])).intensity(i["bytes"])]


def int8_by_int8(i):
    ridge = as_published("TPU v5e", "int8", i["ops"], i["hbm"]).ridge_point("int8")
    return [ridge, critical_batch(ridge, weight_bytes=1)]


def two_chips(i):
    """Each chip multiplies half of D, and they add up their [B,F]: both times are proportional to F, one to D too."""
    D = 1024
    half = Einsum.parse("bd,df->bf", b=64, d=D, f=256).shard({"X": 2}, {"d": "X"})
    sent_bytes = all_reduce_bytes(2 * 64 * 256, devices=2)
    work = bound(half.flops, sent_bytes, peak_flops_per_s=i["flops"], bandwidth_bytes_per_s=i["link"])
    return [D * work.ridge / work.intensity]


def peaks_of_an_a100(i):
    multiply_adds = (i["fma_tf32_per_clk"], i["fma_fp16_per_clk"])
    return [peak_flops_per_s(i["sms"], each, i["clock"]) / 1e12 for each in multiply_adds]


def unary(i):
    a100 = as_published("A100 40GB", "fp32", i["flops"], i["bw"])
    return [a100.attainable("fp32", 1 / 4), 8 * a100.ridge_point("fp32")]


COMPUTED = {
    "RL01": linear,
    "RL02": linear,
    "RL03": pointwise,
    "RL04": pointwise,
    "RL06": square,
    "RL07": lambda i: [device("V100").ridge_point("fp16")],
    "RL08": peaks_of_an_a100,
    "RL09": lambda i: [critical_batch(device("TPU v5e").ridge_point("bf16"))],
    "RL10": int8_by_int8,
    "RL11": lambda i: [critical_batch(device("TPU v5e").ridge_point("bf16"), weight_bytes=1)],
    "RL12": lambda i: [Einsum.parse("bd,bdf->bf", b=i["B"], d=i["D"], f=i["F"]).intensity(1)],
    "RL13": lambda i: [Einsum.parse("n,n->", n=i["n"]).intensity(2)],
    "RL14": two_chips,
    "RL15": lambda i: [critical_batch(as_published("H100", "bf16", i["flops"], i["hbm"]).ridge_point("bf16"))],
    "RL16": lambda i: [device(name).ridge_point(p) for p in ("fp16", "fp8") for name in ("H100", "B200")],
    "GP12": unary,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](oracle.inputs))


@pytest.mark.parametrize(
    ("name", "keys", "row", "precision"),
    [
        ("RL07", ("peak", "bw"), "V100", "fp16"),
        ("RL09", ("flops", "hbm"), "TPU v5e", "bf16"),
        ("RL11", ("flops", "hbm"), "TPU v5e", "bf16"),
    ],
)
def test_the_table_has_what_the_source_takes(name: str, keys: tuple[str, str], row: str, precision: str) -> None:
    peak, bandwidth = (oracles()[name].inputs[key] for key in keys)
    assert device(row).peak(precision) == peak
    assert device(row).memory_bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=0.002)


def test_rl08_takes_the_units_the_clock_and_the_peaks_of_the_table() -> None:
    oracle, a100 = oracles()["RL08"], device("A100 40GB")
    assert (a100.units, a100.clock_hz) == (oracle.inputs["sms"], oracle.inputs["clock"])
    assert [a100.peak(precision) / 1e12 for precision in ("tf32", "fp16")] == oracle.figures
