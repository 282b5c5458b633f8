"""Published figures on number formats of few bits, from their definitions."""

from __future__ import annotations

import pytest

from mlsys_lab.flops.number_formats import FLOAT_FORMATS, scaled_bits, sine_signal_to_noise_db
from tests.oracles.catalogue import oracles


def double_quantised(i):
    first, second = i["scale_bits"]
    once = scaled_bits(0, (first, i["block"]))
    twice = scaled_bits(0, (second, i["block"]), (first, i["block"] * i["block2"]))
    return [once, twice, once - twice, i["N"] * (once - twice) / 8 / 1e9]


def least(i):
    forms = [FLOAT_FORMATS[name] for name in ("fp8 e4m3", "fp8 e5m2")]
    return [number for form in forms for number in (form.smallest_normal, form.smallest_subnormal)]


COMPUTED = {
    "QU02": double_quantised,
    "QU03": lambda i: [FLOAT_FORMATS[name].largest for name in ("fp8 e4m3", "fp8 e5m2", "fp16", "bf16", "fp4 e2m1")],
    "QU04": least,
    "QU05": lambda i: [
        scaled_bits(4, (8, 32)),
        scaled_bits(4, (8, 16)),
        scaled_bits(4, (16, 128)),
        scaled_bits(4, (8, 64), (32, 64 * 256)),
    ],
    "QU06": lambda i: [sine_signal_to_noise_db(i["bits"])],
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](oracle.inputs))
