"""Figures that makers round, as they print them: typed here from their pages, exact.

What makers do not round is held to the digit by test_published.py. Sources, row by row:
V100: Volta white paper, table 1. A100: its data sheet. H100 and H200: peaks of the Hopper white paper's appendix, rates
of memory of their product pages. B200: the page of HGX B200 prints for eight 296 TFLOP/s of fp64, 600 of fp32, and with
sparsity 18 PFLOP/s of tf32, 36 of 16 bits, 72 of 8 bits, 144 of fp4; that of HGX B300 the same but 10 TFLOP/s of fp64
and, dense, 108 PFLOP/s of fp4. RTX 3090 and 4090: appendix A of the white papers
of GA102 and Ada, with sums in fp32. T4: its data sheet. L4: its data sheet, which prints 120, 242 and 485 TFLOP/s with
sparsity. fp64 of the last four, which their makers leave out: a 64th of fp32, T4 a 32nd. NVLink: the same papers, one
link one way. PCI Express: the rate of 16 lanes after line coding, as PCI-SIG rounds it. TPUs: docs.cloud.google.com.
Papers and data sheets of GPUs could not be opened here: their figures are typed from what others quote of them.
"""

from __future__ import annotations

import pytest

from mlsys_lab.hardware import DEVICES, Device
from tests.hardware.test_published import ROUNDED_BY_MAKERS, differing
from tests.leaves import numbers

GIB = 2**30
PCIE_3, PCIE_4, PCIE_5, PCIE_6 = (1, 15.75), (1, 31.5), (1, 63.0), (1, 121.0)
AMPERE = {"fp64": 19.5, "fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312, "int8": 624}
HOPPER = {"fp64": 66.9, "fp32": 66.9, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4, "fp8": 1978.9, "int8": 1978.9}
BLACKWELL = {
    "fp64": 37,
    "fp32": 75,
    "tf32": 1125,
    "fp16": 2250,
    "bf16": 2250,
    "fp8": 4500,
    "fp4": 9000,
    "int8": 4500,
}
BLACKWELL_ULTRA = {name: peak for name, peak in BLACKWELL.items() if name != "int8"} | {"fp64": 1.25, "fp4": 13500}
RTX_3090 = {"fp64": 0.556, "fp32": 35.6, "tf32": 35.6, "fp16": 71, "bf16": 71, "int8": 284}
RTX_4090 = {"fp64": 1.29, "fp32": 82.6, "tf32": 82.6, "fp16": 165.2, "bf16": 165.2, "fp8": 330.3, "int8": 660.6}
L4 = {"fp64": 0.473, "fp32": 30.3, "tf32": 60, "fp16": 121, "bf16": 121, "fp8": 242.5, "int8": 242.5}


def printed(
    tflops: dict[str, float], size_bytes: float, gb_per_s: float, *links: tuple[int, float]
) -> dict[str, float]:
    """Dense TFLOP/s, memory, its GB/s, and of each kind of link the number and GB/s of one, each way: by path."""
    row = {f".peaks.{precision}": 1e12 * figure for precision, figure in tflops.items()}
    row |= {".memory_bytes": size_bytes, ".memory_bandwidth_bytes_per_s": 1e9 * gb_per_s}
    for at, (count, rate) in enumerate(links):
        row |= {f".links.{at}.count": count, f".links.{at}.bytes_per_s_each_way": 1e9 * rate}
    return row


PRINTED = {
    "V100": printed({"fp64": 7.8, "fp32": 15.7, "fp16": 125}, 16 * GIB, 900, (6, 25), PCIE_3),
    "A100 40GB": printed(AMPERE, 40 * GIB, 1555, (12, 25), PCIE_4),
    "A100 80GB": printed(AMPERE, 80 * GIB, 2039, (12, 25), PCIE_4),
    "H100": printed(HOPPER, 80 * GIB, 3350, (18, 25), PCIE_5),
    "H200": printed(HOPPER, 141 * GIB, 4800, (18, 25), PCIE_5),
    "B200": printed(BLACKWELL, 180 * GIB, 8000, (18, 50), PCIE_5),
    "B300": printed(BLACKWELL_ULTRA, 270 * GIB, 8000, (18, 50), PCIE_6),
    "RTX 3090": printed(RTX_3090, 24 * GIB, 936, (4, 14.0625), PCIE_4),
    "RTX 4090": printed(RTX_4090, 24 * GIB, 1008, PCIE_4),
    "T4": printed({"fp64": 0.254, "fp32": 8.1, "fp16": 65, "int8": 130}, 16 * GIB, 320, PCIE_3),
    "L4": printed(L4, 24 * GIB, 300, PCIE_4),
    "TPU v4": printed({"bf16": 275, "int8": 275}, 32 * GIB, 1200, (6, 50)),
    "TPU v5e": printed({"bf16": 197, "int8": 393}, 16e9, 819, (4, 50)),
    "TPU v5p": printed({"bf16": 459, "fp8": 459, "int8": 918}, 95e9, 2765, (6, 100)),
    "TPU v6e": printed({"bf16": 918, "int8": 1836}, 32e9, 1638, (4, 100)),
}


def wrong(row: dict[str, float], name: str) -> set[str]:
    """Numbers of a row that are not what its maker prints, nor what follows from figures of another kind."""
    rounded = {where: value for where, value in row.items() if where.startswith(ROUNDED_BY_MAKERS)}
    exact = {where: pytest.approx(value, rel=1e-12) for where, value in PRINTED[name].items()}
    misprinted = {where for where in rounded.keys() | exact.keys() if rounded.get(where) != exact.get(where)}
    return misprinted | set(differing(row, name))


def test_every_row_is_here() -> None:
    assert list(PRINTED) == [entry.name for entry in DEVICES]


@pytest.mark.parametrize("entry", DEVICES, ids=lambda entry: entry.name)
def test_every_number_of_a_row_is_the_printed_one(entry: Device) -> None:
    assert wrong(dict(numbers(entry)), entry.name) == set()


@pytest.mark.parametrize("entry", DEVICES, ids=lambda entry: entry.name)
def test_no_number_can_be_a_thousandth_off(entry: Device) -> None:
    row = dict(numbers(entry))
    for where, value in row.items():
        for off in (value * 0.999, value * 1.001) if value else (1,):
            assert wrong(row | {where: off}, entry.name) == {where}, where
