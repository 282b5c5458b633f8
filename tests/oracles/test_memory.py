"""Published bytes of states and activations, from the recipes and Korthikanti's closed forms."""

from __future__ import annotations

import pytest

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.flops.activations import layer
from mlsys_lab.flops.communication import data_parallel_bytes
from mlsys_lab.flops.compute import korthikanti_hardware, training
from mlsys_lab.flops.memory import recipe, states
from tests.oracles.catalogue import oracles

MANY = 2**60
"""Ranks: so many that (n - 1)/n is 1, as papers write it."""


def megatron(heads: int, tokens: int, width: int, layers: int = 1, vocabulary: int = 51_200) -> TransformerConfig:
    """A model as Megatron's papers take them: F = 4D, GELU."""
    return TransformerConfig("Megatron's", layers, width, heads, 4 * width, vocabulary, tokens, activation="gelu")


def kept_bytes(i, **how):
    """Activations of a layer of one sequence, with the dropout that the paper counts."""
    return layer(megatron(i["heads"], i["tokens"], i["width"]), i["tokens"], dropout=True, **how).total


def traffic(i):
    plain, second, third = (data_parallel_bytes(1, 1, MANY, zero_stage=stage) for stage in (0, 2, 3))
    return [plain, second, third, third / plain]


def states_gb(i):
    return [states(N, recipe(name)).total / 1e9 for name in ("mixed16", "mixed20") for N in i["N"]]


def scores(i):
    coefficients, saved = [], []
    for heads, tokens, width in (i["gpt3"], i["mtnlg"]):
        kept = layer(megatron(heads, tokens, width), tokens, dropout=True)
        coefficients.append(kept.scores / (tokens * width))
        saved.append(kept.scores / kept.total)
    return coefficients + saved


def per_layer(i):
    tp = {"tensor": i["tensor"]}
    sp = {**tp, "sequence_parallel": True}
    ways = [{}, tp, sp, {**tp, "recomputation": "selective"}, {**sp, "recomputation": "selective"}]
    ways.append({"recomputation": "full"})
    return [kept_bytes(i, **how) / (i["tokens"] * i["width"]) for how in ways]


def hardware_over_model(i, once=False):
    found = []
    for width, layers in zip(i["h"], i["l"], strict=True):
        config = megatron(width // 128, i["s"], width, layers, i["V"])
        step = training(config, i["s"], recomputation="selective")
        found.append((step.hardware if once else korthikanti_hardware(config, i["s"])) / step.model)
    return found


COMPUTED = {
    "ZE02": traffic,
    "ME01": states_gb,
    "ME02": lambda i: [recipe("mixed18").bytes_per_parameter],
    "AC01": scores,
    "AC02": per_layer,
    "AC03": lambda i: [kept_bytes(i) / 1e9],
    "AC04": hardware_over_model,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](oracle.inputs))


def test_ze02_stages_1_and_2_send_as_much() -> None:
    first, second = (data_parallel_bytes(1, 1, MANY, zero_stage=stage) for stage in (1, 2))
    assert first == second


def test_ac04_contradicts_its_own_count_of_a_forward_pass() -> None:
    oracle = oracles()["AC04"]
    once = hardware_over_model(oracle.inputs, once=True)
    assert once == pytest.approx(oracle.arithmetic, rel=1e-4)
    three_times = [1 + 3 * (ratio - 1) for ratio in once]
    assert three_times == pytest.approx(hardware_over_model(oracle.inputs), rel=1e-12)
