"""Every number of every row of the table of devices, worked out a second time from figures of another kind."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from mlsys_lab.hardware import DEVICES, Device
from tests.leaves import numbers

PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yml").read_text(encoding="utf-8"))
VECTORS = ("fp64", "fp32")
KIB, GIB = 2**10, 2**30
SHARED_KIB = {(7, 0): 96, (7, 5): 64, (8, 0): 164, (8, 6): 100, (8, 9): 100, (9, 0): 228, (10, 0): 228, (10, 3): 228}
"""Of a multiprocessor, by compute capability: CUDA Programming Guide."""
WARPS = {(7, 5): 32, (8, 6): 48, (8, 9): 48}
BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 9): 24}
ROUNDED_BY_MAKERS = (".peaks", ".memory", ".links")
"""Where the figures stand that makers print rounded, as in test_printed.py; all others are met to the digit."""
ROUNDED = 0.005
"""The largest distance of a printed figure from what its parts make."""
FAR = {
    ("B200", ".peaks.fp64"): 0.0061,
    ("B200", ".peaks.fp32"): 0.0074,
    ("B200", ".memory_bandwidth_bytes_per_s"): 0.0235,
    ("B300", ".peaks.fp64"): 0.075,
    ("B300", ".peaks.fp32"): 0.0074,
    ("B300", ".memory_bandwidth_bytes_per_s"): 0.0235,
    ("T4", ".peaks.fp32"): 0.0051,
    ("L4", ".peaks.tf32"): 0.0096,
    ("TPU v4", ".memory_bandwidth_bytes_per_s"): 0.0229,
    ("TPU v5p", ".memory_bytes"): 0.0105,
    ("TPU v5p", ".memory_bandwidth_bytes_per_s"): 0.0126,
    ("TPU v6e", ".memory_bandwidth_bytes_per_s"): 0.0238,
}
"""Distances of those that are rounded further, or for which sources differ: 8,000 of 8,192 GB/s, 1,200 of 1,228."""


def peaks(facts: Any) -> dict[str, float]:
    """2 · units · multiply-adds · clock."""
    if "arrays" in facts:
        arrays = facts["units"] * facts["arrays"]["count"]
        once = 2 * arrays * facts["arrays"]["size"] ** 2 * facts["clock_hz"]
        return {precision: times * once for precision, times in facts["times"].items()}
    tensor_hz = facts.get("tensor_clock_hz", facts["clock_hz"])
    return {
        precision: 2 * facts["units"] * each * (facts["clock_hz"] if precision in VECTORS else tensor_hz)
        for precision, each in facts["multiply_adds"].items()
    }


def memory(facts: Any) -> tuple[float, float]:
    """Bytes: as sold, or stacks times what each holds. Bytes a second: bits of the bus times the rate of a pin."""
    units = {"gb": 1e9, "gib": GIB}
    sold = [facts[unit] * size for unit, size in units.items() if unit in facts]
    size = sold[0] if sold else facts["stacks"] * facts["gib_each"] * GIB
    rate = facts["gb_per_s"] * 1e9 if "gb_per_s" in facts else facts["bits"] * facts["gbit_per_s"] / 8 * 1e9
    return size, rate


def link(facts: Any) -> dict[str, float]:
    """Lanes times the rate of each, less what line coding takes; or an equal part of the whole chip's rate."""
    if "gbit_per_s_of_all" in facts:
        gbit_per_s = facts["gbit_per_s_of_all"] / facts["count"]
    else:
        payload, sent = facts.get("code", (1, 1))
        gbit_per_s = facts["lanes"] * facts["gbit_per_s"] * payload / sent
    return {"count": facts["count"], "bytes_per_s_each_way": gbit_per_s / 8 * 1e9}


def worked_out(facts: Any) -> dict[str, float]:
    """What a row's numbers have to be, by where they stand in it."""
    size, rate = memory(facts["memory"])
    row = {
        "year": facts["year"],
        "units": facts["units"],
        "clock_hz": facts["clock_hz"],
        "peaks": peaks(facts),
        "memory_bytes": size,
        "memory_bandwidth_bytes_per_s": rate,
        "links": tuple(map(link, facts["links"])),
    }
    if "lanes" in facts:
        row["fp32_lanes_per_unit"] = math.prod(facts["lanes"])
    if "capability" in facts:
        capability = tuple(facts["capability"])
        row |= {
            "compute_capability": capability,
            "fp32_lanes_per_unit": facts["multiply_adds"]["fp32"],
            "l2_bytes": facts["l2_kib"] * KIB,
            "shared_bytes_per_unit": SHARED_KIB[capability] * KIB,
            "register_bytes_per_unit": 65_536 * 4,
            "warps_per_unit": WARPS.get(capability, 64),
            "blocks_per_unit": BLOCKS.get(capability, 32),
        }
    return dict(numbers({name: value for name, value in row.items() if name not in facts.get("unpublished", ())}))


def differing(row: dict[str, float], name: str) -> list[str]:
    """Where a row and what it follows from differ, or have not the same numbers."""
    expected = worked_out(PUBLISHED[name])

    def near(where: str) -> Any:
        rounded = FAR.get((name, where), ROUNDED) if where.startswith(ROUNDED_BY_MAKERS) else 1e-12
        return pytest.approx(expected.get(where), rel=rounded)

    return [where for where in sorted(row.keys() | expected.keys()) if row.get(where) != near(where)]


def test_every_row_has_its_figures_from_elsewhere() -> None:
    assert list(PUBLISHED) == [entry.name for entry in DEVICES]


@pytest.mark.parametrize("entry", DEVICES, ids=lambda entry: entry.name)
def test_every_number_of_a_row_follows_from_figures_of_another_kind(entry: Device) -> None:
    assert differing(dict(numbers(entry)), entry.name) == []


def test_only_few_are_far_from_what_their_parts_make() -> None:
    for entry in DEVICES:
        row, made = dict(numbers(entry)), worked_out(PUBLISHED[entry.name])
        far = {where for where in row if made[where] and abs(row[where] / made[where] - 1) > ROUNDED}
        assert far == {where for name, where in FAR if name == entry.name}
