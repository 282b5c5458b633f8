from __future__ import annotations

import math

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.flops.number_formats import FLOAT_FORMATS, FloatFormat, scaled_bits, sine_signal_to_noise_db

TORCH = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8 e5m2": torch.float8_e5m2,
    "fp8 e4m3": torch.float8_e4m3fn,
}


@pytest.mark.parametrize("name", TORCH)
def test_limits_are_those_of_torch(name: str) -> None:
    own, limits = FLOAT_FORMATS[name], torch.finfo(TORCH[name])
    assert (own.bits, own.largest, own.smallest_normal) == (limits.bits, limits.max, limits.tiny)
    assert own.smallest_subnormal == limits.smallest_normal * limits.eps


def test_all_numbers_of_fp4_are_below_its_largest() -> None:
    form = FLOAT_FORMATS["fp4 e2m1"]
    numbers = [
        (mantissa / 2) if code == 0 else (1 + mantissa / 2) * 2.0 ** (code - 1)
        for code in range(4)
        for mantissa in (0, 1)
    ]
    assert form.bits == 4 and len(set(numbers)) == 2 ** (form.bits - 1)
    assert (max(numbers), sorted(numbers)[1]) == (form.largest, form.smallest_subnormal)
    assert form.smallest_normal == 1.0


def test_a_scale_costs_its_bits_over_those_who_share_it() -> None:
    group, weights = 64, 64 * 300
    together = 4 * weights + 16 * weights / group
    assert scaled_bits(4, (16, group)) == together / weights
    assert scaled_bits(8) == 8


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_noise_is_that_of_a_sine_that_is_rounded(bits: int) -> None:
    sine = torch.sin(torch.arange(1_000_003, dtype=torch.float64) * math.sqrt(2))
    step = 2 / 2**bits
    noise = (sine / step).round() * step - sine
    measured = 10 * torch.log10(sine.square().mean() / noise.square().mean())
    assert sine_signal_to_noise_db(bits) == pytest.approx(float(measured), abs=0.15)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FloatFormat(0, 3), "exponent_bits"),
        (lambda: scaled_bits(4, (16, 0)), "shared"),
        (lambda: scaled_bits(-1), "bits"),
        (lambda: sine_signal_to_noise_db(0), "bits"),
    ],
)
def test_what_there_cannot_be_is_refused(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
