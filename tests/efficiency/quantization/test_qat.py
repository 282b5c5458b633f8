"""Training with rounded weights: the quantized model's outputs, a gradient that ignores rounding, a loss that falls."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.efficiency.formats import E2M1, INT4, INT8, UINT2, UINT3
from mlsys_lab.efficiency.grammar import Grammar
from mlsys_lab.efficiency.quantization import Recipe, Scheme, quantize
from mlsys_lab.efficiency.quantization.qat import FakeQuantizedLinear, fake_quantize, prepare_qat
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer, training

CONFIG = TransformerConfig("tiny", n_layers=1, d_model=32, n_heads=2, d_ff=64, vocab_size=64, context=32, norm="rms")
TWO_BITS = Recipe(Scheme(UINT2, "group", 16))
RECIPES = [
    TWO_BITS,
    Recipe(Scheme(INT4), clipping="mse"),
    Recipe(Scheme(E2M1, "group", 32, scale_dtype=torch.float8_e8m0fnu)),
    Recipe(Scheme(INT8), activations=Scheme(INT8, scale_dtype=torch.float32)),
]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def new_model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(CONFIG)


def text(count: int, seed: int, grammar: int = 0) -> torch.Tensor:
    return torch.from_numpy(Grammar.random(grammar).sample(count * 33, seed=seed)).view(count, 33)


def train(model: nn.Module, steps: int, lr: float, grammar: int = 0) -> None:
    tokens = Grammar.random(grammar).sample(steps * 8 * 32 + 64, seed=0)
    with training.one_thread():
        for _ in training.train(model, tokens, batch_size=8, seq_len=32, steps=steps, lr=lr, seed=0):
            pass


def test_the_gradient_ignores_the_rounding():
    weight, x, g = normal(6, 32).requires_grad_(), normal(5, 32, seed=1), normal(5, 6, seed=2)
    rounded = fake_quantize(weight, Scheme(UINT3, "group", 16))
    assert 2 <= len(rounded[0, :16].unique()) <= 8
    (x @ rounded.mT).backward(g)
    torch.testing.assert_close(weight.grad, g.mT @ x)


@pytest.mark.parametrize("recipe", RECIPES, ids=["uint2", "int4-mse", "mxfp4", "w8a8"])
def test_outputs_are_those_of_the_quantized_model(recipe):
    model, tokens = new_model(), text(2, seed=1)[:, :-1]
    logits = prepare_qat(model, recipe)(tokens)
    assert torch.equal(logits, quantize(prepare_qat(model, recipe), recipe)(tokens))
    assert not torch.equal(logits, model(tokens))


def test_layers_of_blocks_are_prepared_in_a_copy():
    model = new_model()
    prepared = prepare_qat(model, TWO_BITS)
    kinds = [type(module) for module in prepared.modules() if isinstance(module, nn.Linear)]
    assert kinds == [*[FakeQuantizedLinear] * 7, nn.Linear]  # the head
    assert not any(isinstance(module, FakeQuantizedLinear) for module in model.modules())
    assert set(prepared.state_dict()) == set(model.state_dict())


def test_updates_smaller_than_a_step_add_up():
    layer = FakeQuantizedLinear(nn.Linear(16, 1, bias=False), Recipe(Scheme(INT4)))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[7.0] + 15 * [1.0]]))  # a scale of 1
    before, x = layer.weight.detach().clone(), torch.zeros(1, 16)
    x[0, 1] = -1
    changed = []
    for _ in range(12):
        layer.zero_grad()
        layer(x).sum().backward()
        with torch.no_grad():
            layer.weight -= 0.05 * layer.weight.grad
        changed.append(fake_quantize(layer.weight, layer.recipe.weights)[0, 1].item())
    assert changed[:9] == 9 * [1.0] and changed[-1] == 2.0
    assert torch.equal(layer.weight[0, 2:], before[0, 2:])


def test_a_short_fine_tuning_recovers_much_of_what_two_bits_lose():
    model, held_out = training.new_model(CONFIG, 0), text(64, seed=2)
    train(model, 60, 1e-2)
    prepared = prepare_qat(model, TWO_BITS)
    train(prepared, 20, 2e-3)
    exact, rounded, tuned = (
        training.loss(one, held_out).item() for one in (model, quantize(model, TWO_BITS), quantize(prepared, TWO_BITS))
    )
    assert tuned - exact < 0.5 * (rounded - exact)


def test_recipes_that_need_calibration_are_refused():
    static = Recipe(Scheme(INT8), activations=Scheme(INT8, "tensor"))
    for recipe in (Recipe(Scheme(INT4), "gptq"), static):
        with pytest.raises(InputError, match="a recipe that needs calibration cannot be trained with"):
            prepare_qat(new_model(), recipe)
