"""Published counts of FLOPs, from the einsum algebra, the closed forms and the 6N rule."""

from __future__ import annotations

import pytest

from mlsys_lab.configs.presets import preset
from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.flops.compute import forward, six_n
from mlsys_lab.flops.einsum import Einsum
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.flops.roofline import attention_intensity
from mlsys_lab.flops.utilisation import mfu
from mlsys_lab.hardware import device
from mlsys_lab.scaling.laws import PF_DAY
from tests.oracles.catalogue import oracles


def big_einsum(i):
    return [Einsum.parse("ijkl,ijmno->klmno", {letter.lower(): size for letter, size in i.items()}).flops]


def on_a_mesh(i):
    whole = Einsum.parse("bd,df->bf", b=i["B"], d=i["D"], f=i["F"])
    part = whole.shard(i["mesh"], {"b": "X", "d": "Y"})
    devices = i["mesh"]["X"] * i["mesh"]["Y"] * i["mesh"]["Z"]
    return [devices * part.flops / whole.flops, 32 * part.flops / whole.flops]


def attention_grows(i):
    config = TransformerConfig("4D", 1, i["D"], i["D"] // 128, 4 * i["D"], 32_000, 8192)
    one = forward(config, 1)
    equal = (one.query + one.key_value + one.output) / one.attention
    there = forward(config, round(equal))
    return [equal, there.attention / (there.layers - there.attention)]


def deepseek(i, peak=None):
    flops = six_n(i["N"], i["D"])
    return [flops, mfu(flops, i["hours"] * 3600, peak_flops_per_s=peak or i["peak"])]


COMPUTED = {
    "FL02": big_einsum,
    "FL03": on_a_mesh,
    "FL04": attention_grows,
    "FL05": lambda i: [attention_intensity(*i[phase], group=i["G"]) for phase in ("prefill", "decode")],
    "FL07": lambda i: [six_n(i["N"], i["D"]) / PF_DAY],
    "FL08": deepseek,
    "FL09": lambda i: [six_n(i["N"], i["D"])],
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](oracle.inputs))


@pytest.mark.parametrize(
    ("name", "of", "tolerance"),
    [("FL07", "gpt3-175b", 0.005), ("FL08", "deepseek-v3", 0.02), ("FL09", "llama3-405b", 0.005)],
)
def test_the_preset_has_the_parameters_of_the_source(name: str, of: str, tolerance: float) -> None:
    assert parameters(preset(of)).active == pytest.approx(oracles()[name].inputs["N"], rel=tolerance)


def test_fl08_contradicts_the_hardware_that_the_run_had() -> None:
    oracle = oracles()["FL08"]
    assert deepseek(oracle.inputs, device("H100").peak("fp8")) == pytest.approx(oracle.arithmetic, rel=0.005)
