"""What can be said today of published figures on fused kernels."""

from __future__ import annotations

import pytest

from mlsys_lab.flops.compute import training
from mlsys_lab.flops.config import TransformerConfig
from tests.oracles.catalogue import oracles


def test_fa01_contradicts_its_own_shape() -> None:
    oracle = oracles()["FA01"]
    i = oracle.inputs
    width = i["heads"] * i["head_dim"]
    config = TransformerConfig("attention", 1, width, i["heads"], 4 * width, 50_257, i["tokens"])
    with_attention, without = (training(config, tokens, batch) for tokens, batch in ((1024, 64), (1, 64 * 1024)))
    # One token attends to itself: the same matrices, a 1024th of the pairs.
    forward = (with_attention.forward - without.forward) * 1024 / 1023 / 1e9
    both = (with_attention.model - without.model) * 1024 / 1023 / 1e9
    assert forward == pytest.approx(oracle.arithmetic["forward_GFLOPs"], rel=0.001)
    assert both == pytest.approx(oracle.arithmetic["forward_and_backward_GFLOPs"], rel=0.001)
    assert forward > 4 * oracle.printed["standard_GFLOPs"]
