"""What 8 bits save: against six FLOPs for each weight and token, and bytes that torch's autograd really keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mlsys_lab.configs import Experts
from mlsys_lab.configs.presets import preset
from mlsys_lab.efficiency.fp8 import RECIPES, convert, savings
from mlsys_lab.efficiency.fp8.convert import find_layers
from mlsys_lab.errors import InputError
from mlsys_lab.flops import compute
from mlsys_lab.models import Transformer
from tests.efficiency.fp8.test_convert import CONFIG


def test_flops_of_8_bits_are_six_for_each_converted_weight_and_token():
    model = Transformer(CONFIG)
    weights = sum(layer.weight.numel() for layer in find_layers(model).values())
    saved = savings(CONFIG, RECIPES["current"], tokens=32, batch=3)
    assert saved.low_flops == 6 * weights * 96
    assert saved.low_flops + saved.high_flops == compute.training(CONFIG, 32, 3).model


@pytest.mark.parametrize("name", ["bf16", "current", "block"])
def test_bytes_are_those_that_the_backward_pass_keeps(name):
    """One layer of each that share an input."""
    config = replace(CONFIG, d_model=128, d_ff=256, head_dim=64)
    model, tokens, kept = convert(Transformer(config), RECIPES[name]), 32, 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.nbytes
        return tensor

    for layer in ("attention.query", "attention.out", "mlp.up", "mlp.down"):
        module = model.blocks[0].get_submodule(layer)
        module.weight.requires_grad_(True)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            module(torch.randn(128, module.in_features))
        weights = module.weight_scaling(module.weight).along_rows
        kept -= weights.codes.nbytes + weights.scale.nbytes
        kept -= 0 if name == "block" else 4  # the scale of the inputs
    saved = savings(config, RECIPES[name], tokens, batch=4)
    assert saved.input_bytes == kept
    assert saved.bf16_input_bytes == 2 * 128 * (128 + 128 + 128 + 256)


def test_speed_up_is_bounded_by_what_stays_in_16_bits():
    saved = savings(preset("llama3-70b"), RECIPES["block"], tokens=8192)
    assert saved.speedup_bound(1.0) == 1
    fraction = saved.low_fraction
    assert saved.speedup_bound(2.0) == pytest.approx(1 / (fraction / 2 + 1 - fraction))
    assert savings(preset("llama3-70b"), RECIPES["block"], tokens=65536).speedup_bound() < saved.speedup_bound() < 2
    with pytest.raises(InputError, match="peak_ratio must be at least 1"):
        saved.speedup_bound(0.5)


def test_experts_are_refused():
    with pytest.raises(InputError, match="experts and of latent attention"):
        savings(replace(CONFIG, experts=Experts(count=4, active=2, d_ff=16)), RECIPES["block"], tokens=8)
