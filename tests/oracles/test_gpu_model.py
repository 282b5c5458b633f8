"""Published figures on a GPU's chip, from the table of devices and the roofline."""

from __future__ import annotations

import math

import pytest

from mlsys_lab.flops.einsum import Einsum
from mlsys_lab.flops.peaks import implied_clock_hz, implied_multiply_adds, peak_flops_per_s
from mlsys_lab.flops.roofline import bound, bound_on, matmul_work
from mlsys_lab.hardware import device
from mlsys_lab.kernels.trace.occupancy import occupancy
from tests.oracles.catalogue import oracles

H100, B200 = device("H100"), device("B200")
GA102 = device("RTX 3090")


def lanes(i):
    return [one.fp32_lanes for one in (H100, B200, device("TPU v5p"))]


def without_fma(i):
    """Half of the peak, for a multiply-add is two operations."""
    return [peak_flops_per_s(1, H100.fp32_lanes, clock) / 2 / 1e12 for clock in i["clock"]]


def product_us(i):
    roofs = {"peak_flops_per_s": i["flops"], "bandwidth_bytes_per_s": i["bw"]}
    return [1e6 * bound(*matmul_work(rows, i["out"], i["inp"], 2), **roofs).time_s for rows in i["rows"]]


def addition(i):
    small, large = (bound_on(H100, "fp32", n, n * 3 * 4) for n in (2**16, 2**30))
    return [small.intensity, 1e6 * small.time_s, 1e3 * large.time_s]


def gemm(i):
    product = Einsum.parse("ik,kj->ij", dict.fromkeys("ijk", i["N"]))
    # C is read as well: alpha·A·B + beta·C.
    return [product.flops / 1e9, product.size_bytes(i["bytes"]) / 1e6, math.prod(product.shape) * i["bytes"] / 1e6]


def warps_of_wide_threads(i):
    """A thread asks for 255 registers at most, and is given all 256."""
    return [occupancy(H100, i["warp"], registers=i["registers"] - 1).warps]


def of_a_tensor_core(i):
    return [2 * implied_multiply_adds(i["flops"], H100.units * i["tc"], i["clock"])]


def occupied(i):
    """The table has no A6000, but a card of the same chip; the source counts the block's own KiB as shared memory."""
    reserved = 1024
    held = occupancy(GA102, i["block"], registers=i["registers"], shared_bytes=i["block_smem"] - reserved)
    return [held.occupancy]


COMPUTED = {
    "GP01": lanes,
    "GP02": without_fma,
    "GP03": product_us,
    "GP04": lambda i: [implied_clock_hz(i["flops"], 1, B200.fp32_lanes) / 1e9],
    "GP05": addition,
    "GP06": warps_of_wide_threads,
    "GP08": occupied,
    "GP09": gemm,
    "GP13": of_a_tensor_core,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](oracle.inputs))


def test_gp01_counts_what_the_source_counts() -> None:
    i = oracles()["GP01"].inputs
    assert [H100.units, B200.units] == i["sms"]
    assert H100.fp32_lanes_per_unit == B200.fp32_lanes_per_unit == i["quads"] * i["lanes"]
    assert lanes(i)[2] == math.prod(i["tpu"])


def test_gp13_is_a_power_of_two_at_the_clock_that_nvidia_states() -> None:
    assert implied_multiply_adds(H100.peak("bf16"), H100.units * 4, 1.83e9) == pytest.approx(512, rel=0.001)


def test_gp08_takes_the_multiprocessor_of_the_table_and_one_block_is_all_it_holds() -> None:
    i = oracles()["GP08"].inputs
    assert (GA102.warps_per_unit, 32 * GA102.warps_per_unit) == (i["warps"], i["max_threads"])
    assert GA102.shared_bytes_per_unit == i["smem"]
    held = occupancy(GA102, i["block"], registers=i["registers"], shared_bytes=i["block_smem"] - 1024)
    assert (held.blocks, held.limits) == (1, ("warps", "registers"))
    assert held.shared_bytes_per_block == i["block_smem"] and held.by["shared memory"] == 11
