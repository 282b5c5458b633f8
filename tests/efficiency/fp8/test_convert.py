"""Models that train in 8 bits: what is converted, what stays in high precision, and that training works."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from mlsys_lab.configs import Experts, TransformerConfig
from mlsys_lab.efficiency.fp8 import RECIPES, Fp8Linear, Recipe, convert, count_lost, high_precision_parameters
from mlsys_lab.efficiency.grammar import Grammar
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer, training

CONFIG = TransformerConfig("tiny", n_layers=1, d_model=32, n_heads=2, d_ff=48, vocab_size=64, context=32, norm="rms")


def losses(recipe: str, steps: int = 25) -> list[float]:
    tokens = Grammar.random(0).sample(steps * 8 * 32 + 64, seed=0)
    model = convert(training.new_model(CONFIG, 0), recipe)
    with training.one_thread():
        run = training.train(model, tokens, batch_size=8, seq_len=32, steps=steps, lr=1e-2, seed=0)
        return [step_loss for _, step_loss in run]


def test_projections_of_blocks_are_converted_and_the_rest_is_not():
    model = Transformer(replace(CONFIG, tied=False))
    converted = convert(model, "current")
    kinds = {name: type(module) for name, module in converted.named_modules() if isinstance(module, nn.Linear)}
    assert kinds.pop("head") is nn.Linear
    assert set(kinds.values()) == {Fp8Linear} and len(kinds) == 7
    assert high_precision_parameters(converted) == high_precision_parameters(model)
    assert set(high_precision_parameters(model)) == {
        *("embedding.weight", "head.weight", "norm.weight"),
        *("blocks.0.attention_norm.weight", "blocks.0.mlp_norm.weight"),
    }
    assert all(parameter.dtype == torch.float32 for parameter in converted.parameters())


def test_a_copy_is_converted_whose_parameters_keep_their_names():
    model = Transformer(CONFIG)
    converted = convert(model, Recipe(scaling="delayed", history_length=4))
    assert not any(isinstance(module, Fp8Linear) for module in model.modules())
    for (name, ours), (its_name, original) in zip(converted.named_parameters(), model.named_parameters(), strict=True):
        assert name == its_name and torch.equal(ours, original) and ours is not original
    extra = set(converted.state_dict()) - set(model.state_dict())
    assert extra and all(name.endswith("_scaling.history") for name in extra)
    assert set(convert(model, "block").state_dict()) == set(model.state_dict())


def test_routers_stay_in_high_precision():
    model = Transformer(replace(CONFIG, experts=Experts(count=4, active=2, d_ff=16)))
    converted = convert(model, "block")
    assert type(converted.blocks[0].mlp.router) is nn.Linear
    assert type(converted.blocks[0].mlp.experts[3].up) is Fp8Linear
    assert "blocks.0.mlp.router.weight" in high_precision_parameters(converted)
    converted(torch.arange(16)[None]).sum().backward()


def test_an_unknown_recipe_is_refused():
    with pytest.raises(InputError, match=r"unknown fp8 recipe: got 'delay', .* did you mean 'delayed'"):
        convert(Transformer(CONFIG), "delay")
    with pytest.raises(InputError, match=r"unknown scaling: got 'row'"):
        Recipe(scaling="row")


def test_scaled_recipes_train_as_bf16_does_and_an_unscaled_one_does_not():
    last = {name: sum(losses(name)[-5:]) / 5 for name in RECIPES}
    for name in ("current", "delayed", "block"):
        assert abs(last[name] / last["bf16"] - 1) < 0.012
    assert last["unscaled"] > 1.015 * last["bf16"]


def test_counters_add_up_all_casts_of_a_model():
    model = convert(training.new_model(CONFIG, 0), "unscaled")
    tokens = torch.arange(33)[None] % 64
    with count_lost(model) as lost:
        for _ in range(2):
            (training.loss(model, tokens) / 1000).backward()  # as a mean over 1,000 times the tokens
    assert len(lost) == 7 * 3
    assert lost["blocks.0.mlp.up.weight_scaling"].nonzero == 2 * 32 * 48
    assert lost["blocks.0.attention.out.gradient_scaling"].underflow > 0.9
    assert lost["blocks.0.mlp.down.input_scaling"].saturation == 0
    with count_lost(model) as lost:
        pass
    assert lost == {}
