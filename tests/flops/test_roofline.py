"""The roofline: work on a device, and the intensities that decide which of its limits holds."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.flops.einsum import Einsum
from mlsys_lab.flops.roofline import attention_intensity, bound, bound_on, critical_batch, matmul_work
from mlsys_lab.hardware import device


def test_time_is_the_larger_of_compute_and_memory() -> None:
    slow = bound(60.0, 120.0, peak_flops_per_s=100.0, bandwidth_bytes_per_s=40.0)
    assert (slow.limit, slow.intensity, slow.ridge, slow.time_s, slow.flops_per_s, slow.fraction) == (
        "memory", 0.5, 2.5, 3.0, 20.0, 0.2,
    )  # fmt: skip
    assert bound(60.0, 120.0, peak_flops_per_s=10.0, bandwidth_bytes_per_s=40.0).limit == "compute"


def test_a_row_of_the_table_gives_peak_and_bandwidth() -> None:
    h100, work = device("H100"), matmul_work(64, 4096, 4096, 2)
    same = bound(*work, peak_flops_per_s=989.4e12, bandwidth_bytes_per_s=3.35e12)
    assert bound_on(h100, "bf16", *work) == same and same.limit == "memory"
    with pytest.raises(InputError, match="no bf16 peak"):
        bound_on(device("T4"), "bf16", *work)


def test_the_critical_batch_is_where_a_wide_matmul_meets_the_ridge() -> None:
    h100 = device("H100")
    ridge = h100.ridge_point("bf16")
    rows = critical_batch(ridge)
    assert rows == pytest.approx(ridge)
    wide = 10**7
    below, above = (bound_on(h100, "bf16", *matmul_work(int(rows * x), wide, wide, 2)).limit for x in (0.99, 1.01))
    assert (below, above) == ("memory", "compute")


def test_attention_intensity_is_that_of_its_two_einsums_without_the_scores() -> None:
    group, queries, keys, width = 8, 16, 4096, 128
    sizes = {"g": group, "t": queries, "s": keys, "h": width}
    scores, values = Einsum.parse("gth,sh->gts", sizes), Einsum.parse("gts,sh->gth", sizes)
    moved = scores.size_bytes() + values.size_bytes() - 2 * 2 * group * queries * keys
    assert attention_intensity(queries, keys, group) == pytest.approx((scores.flops + values.flops) / moved)
    assert attention_intensity(1, 10**9, group=8) == pytest.approx(8)
    assert attention_intensity(1, 4096, element_bytes=1) == 2 * attention_intensity(1, 4096)
    with pytest.raises(InputError, match="queries must be at least 1"):
        attention_intensity(0, 4096)
