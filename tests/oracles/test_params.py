"""Published parameter counts, to the last one where they are published so."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mlsys_lab.configs.presets import preset
from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.flops.cache import bytes_per_token
from mlsys_lab.flops.parameters import parameters
from tests.oracles.catalogue import oracles


def total(name: str) -> list[int]:
    return [parameters(preset(name)).total]


def without_biases(i):
    gpt2 = replace(preset("gpt2"), qkv_bias=False, out_bias=False, mlp_bias=False, norm_bias=False)
    return [parameters(gpt2).total]


def to_be_served(i):
    config = TransformerConfig("to be served", i["L"], i["D"], i["N"], i["F"], i["V"], 8192, i["K"], i["H"], tied=True)
    return [parameters(config).total]


def wide(i, **rounded):
    sizes = {**i, **rounded}
    config = TransformerConfig("wide", i["L"], sizes["D"], sizes["N"], sizes["F"], sizes["V"], context=8192)
    count = parameters(config)
    return [count.total, count.attention / (count.attention + count.mlp), bytes_per_token(config, element_bytes=1)]


def by_kind(i):
    count = parameters(preset("llama3-70b"))
    return [kind / 1e9 for kind in (count.mlp, count.embedding + count.head, count.attention)]


COMPUTED = {
    "PA01": lambda i: total("gpt2"),
    "PA02": without_biases,
    "PA03": lambda i: [*total("gpt2-medium"), *total("gpt2-large"), *total("gpt2-xl")],
    "PA04": lambda i: total("llama2-7b"),
    "PA05": lambda i: total("llama2-13b"),
    "PA09": to_be_served,
    "PA10": wide,
    "PA11": by_kind,
}
SIZES = {
    "L": "n_layers",
    "h": "d_model",
    "D": "d_model",
    "F": "d_ff",
    "V": "vocab_size",
    "N": "n_heads",
    "K": "n_kv_heads",
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](oracle.inputs))


@pytest.mark.parametrize(
    ("name", "of"), [("PA01", "gpt2"), ("PA04", "llama2-7b"), ("PA05", "llama2-13b"), ("PA11", "llama3-70b")]
)
def test_the_preset_has_the_sizes_of_the_source(name: str, of: str) -> None:
    for letter, field in SIZES.items():
        if letter in (inputs := oracles()[name].inputs):
            assert getattr(preset(of), field) == inputs[letter]


def test_pa10_contradicts_its_own_sizes_by_rounding() -> None:
    oracle = oracles()["PA10"]
    rounded = wide(oracle.inputs, **oracle.rounded)[0]
    assert math.floor(rounded / 1e9) == oracle.printed[0] / 1e9
    assert wide(oracle.inputs)[0] > 1.08 * oracle.printed[0]
