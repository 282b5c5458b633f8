"""Published figures on diffusion: multiply-adds of DiT and ADM, guidance as two papers write it, evaluations."""

from __future__ import annotations

import pytest

from mlsys_lab.diffusion.cost import evaluations
from mlsys_lab.diffusion.guidance import guide, scale_from_weight
from mlsys_lab.diffusion.samplers import DDIM
from mlsys_lab.flops import dit, unet
from tests.oracles.catalogue import oracles


def others(i):
    adm = unet.multiply_adds(unet.ADM)
    return [i["LDM-4"], adm, i["ADM-U"], adm / dit.multiply_adds(dit.preset("XL/2"))]


COMPUTED = {
    "DI03": lambda i: [dit.multiply_adds(dit.preset("XL/2", size=64))],
    "DI04": lambda i: [dit.multiply_adds(dit.preset(f"XL/{patch}")) for patch in (4, 8)],
    "DI05": others,
    "DI06": lambda i: [guide(i["c"], i["u"], scale) for scale in (float(i["s"]), scale_from_weight(i["w"]))],
    "DI07": lambda i: [evaluations(DDIM(eta=1), i["ddpm"]), evaluations(DDIM(), i["ddim"], guided=True)],
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](oracle.inputs))


def test_di03_and_di04_are_of_as_many_tokens_as_they_say() -> None:
    tokens = [dit.preset("XL/2", size=64).tokens, *(dit.preset(f"XL/{patch}").tokens for patch in (4, 8))]
    assert tokens == [oracles()["DI03"].inputs["tokens"], *oracles()["DI04"].inputs["tokens"]]
