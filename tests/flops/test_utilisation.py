"""MFU, HFU and MBU against published runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.flops.utilisation import flops_per_s, hfu, mbu, mfu, training_time_s


def test_palm_s_46_percent_from_its_tokens_a_second() -> None:
    # arXiv:2204.02311, appendix B: 238.3 thousand tokens a second on 6,144 chips of TPU v4.
    flops_per_token = 6 * 540.35e9 + 12 * 118 * 48 * 256 * 2048
    assert mfu(238.3e3 * flops_per_token, 1.0, peak_flops_per_s=275e12, devices=6144) == pytest.approx(0.462, abs=5e-4)


def test_hfu_exceeds_mfu_by_what_is_recomputed() -> None:
    model, hardware = 6e18, 8e18
    ratio = hfu(hardware, 10, peak_flops_per_s=1e15, devices=900) / mfu(model, 10, peak_flops_per_s=1e15, devices=900)
    assert ratio == pytest.approx(4 / 3)


def test_speed_and_time_are_inverse() -> None:
    time_s = training_time_s(8 * 175e9 * 300e9, peak_flops_per_s=312e12, devices=1024, utilisation=140 / 312)
    assert time_s / 86400 == pytest.approx(33.9, abs=0.1)  # Narayanan et al., section 5.1: 34 days
    assert flops_per_s(8 * 175e9 * 300e9, time_s, 1024) == pytest.approx(140e12)


def test_bandwidth_is_that_of_all_devices() -> None:
    assert mbu(112e9, 0.014, bandwidth_bytes_per_s=2e12, devices=8) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: mfu(1.0, 0.0, peak_flops_per_s=1.0), "time_s must be positive: got 0.0"),
        (lambda: mfu(1.0, 1.0, peak_flops_per_s=-1.0), "peak_flops_per_s must be positive"),
        (lambda: mfu(1.0, float("nan"), peak_flops_per_s=1.0), "time_s must be positive"),
        (lambda: mbu(1.0, 1.0, bandwidth_bytes_per_s=1.0, devices=0), "devices must be positive"),
        (lambda: training_time_s(1.0, peak_flops_per_s=1.0, utilisation=0), "utilisation must be positive"),
    ],
)
def test_nothing_takes_no_time(call: Callable[[], float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()
