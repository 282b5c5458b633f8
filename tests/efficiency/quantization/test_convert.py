"""Whole models: every linear layer of the blocks quantized, the rest untouched, bytes counted."""

import pytest
import torch
from torch import nn

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.efficiency.formats import INT8, UINT8
from mlsys_lab.efficiency.quantization import RECIPES, MixedInt8Linear, QuantizedLinear, Recipe, Scheme, quantize
from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine import Request, SamplingParams
from mlsys_lab.inference.generate import generate
from mlsys_lab.models import Transformer
from mlsys_lab.models.traffic import token_bytes, weight_bytes
from tests.efficiency.quantization.models import ARCHITECTURES, make_model
from tests.efficiency.quantization.models import TOKENS as SHORT

CONFIG = TransformerConfig(
    "small", n_layers=2, d_model=64, n_heads=4, n_kv_heads=2, d_ff=128, vocab_size=31, context=32, tied=True
)
EVERYTHING = Recipe(
    Scheme(UINT8, "group", 8), "gptq", Scheme(INT8, "tensor"), transform="rotate", clipping="mse", act_order=True
)
TOKENS = torch.randint(31, (4, 32), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Transformer(CONFIG)


@pytest.mark.parametrize("recipe", RECIPES)
@torch.no_grad()
def test_every_linear_layer_of_the_blocks_is_quantized_and_the_model_itself_untouched(model, recipe):
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    quantized = quantize(model, recipe, TOKENS)
    assert not [m for m in quantized.blocks.modules() if isinstance(m, nn.Linear)]
    assert len([m for m in quantized.modules() if isinstance(m, QuantizedLinear | MixedInt8Linear)]) == 2 * 7
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    assert torch.equal(quantized.embedding.weight, model.embedding.weight) is not recipe.endswith("rotate")
    off = (quantized(TOKENS) - model(TOKENS)).abs().max()
    assert 0 < off < 0.1 * model(TOKENS).abs().max()
    assert weight_bytes(quantized.blocks) < 0.4 * weight_bytes(model.blocks)


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_models_of_any_architecture_are_quantized(name):
    model = make_model(**ARCHITECTURES[name])
    exact = model(SHORT)
    for recipe in ("int8", "w8a8-smooth", "w8a8-rotate", EVERYTHING):
        assert (quantize(model, recipe, SHORT)(SHORT) - exact).norm() < 0.1 * exact.norm()


def test_a_quantized_model_generates(model):
    request = Request([1, 2, 3], 5, SamplingParams(temperature=0))
    (((text,),),) = [generate(quantize(model, "int8"), [request])]
    assert len(text.token_ids) == 5


@torch.no_grad()
def test_a_block_is_calibrated_on_the_outputs_of_the_quantized_ones_before_it(model):
    seen = []

    def crush(linear, inputs):
        seen.append(inputs)
        return nn.Linear(linear.in_features, linear.out_features) if not seen[1:] else linear

    quantize(model, crush, TOKENS)
    first, whole = len(seen) // 2, [x for x in seen]
    assert all(x.shape[0] == TOKENS.numel() for x in whole)
    embedded = model.blocks[0].attention_norm(model.embedding(TOKENS)).flatten(0, 1)
    torch.testing.assert_close(whole[0], embedded)
    exact = model.blocks[1].attention_norm(model.blocks[0](model.embedding(TOKENS), None, None)).flatten(0, 1)
    assert not torch.allclose(whole[first], exact)


def test_bytes_of_a_token_are_the_weights_and_its_sequence_s_keys_and_values(model):
    weights = 4 * sum(p.numel() for p in model.parameters())
    assert weight_bytes(model) == weights
    assert token_bytes(model, 0) == weights + 2 * 2 * 2 * 16 * 4
    assert token_bytes(model, 9) - token_bytes(model, 0) == 9 * 2 * 2 * 2 * 16 * 4


def test_an_untied_embedding_is_read_by_the_row():
    config = TransformerConfig("untied", n_layers=1, d_model=8, n_heads=2, d_ff=8, vocab_size=31, context=8)
    untied = Transformer(config)
    row = untied.embedding.weight[0].nbytes
    assert token_bytes(untied, 0) == weight_bytes(untied) - 30 * row + 2 * 8 * 4


def test_an_unknown_recipe_and_one_without_calibration_are_one_line(model):
    with pytest.raises(InputError, match=r"unknown quantization recipe: got int5, .*did you mean 'int"):
        quantize(model, "int5")
    for name in ("int4-gptq", "llm-int8"):
        with pytest.raises(InputError, match=f"{name} needs activations: expected token ids"):
            quantize(model, name)
    with pytest.raises(InputError, match="this recipe needs activations"):
        quantize(model, EVERYTHING, TOKENS[:0])
    with pytest.raises(InputError, match="unknown method of quantization: got 'gtpq'"):
        Recipe(Scheme(INT8), "gtpq")
    with pytest.raises(InputError, match="unknown transform: got 'turn'"):
        Recipe(Scheme(INT8), transform="turn")
    with pytest.raises(InputError, match=r"calibration of another shape: got \(4, 33\), expected \(B, T\), T up to 32"):
        quantize(model, "int4-gptq", torch.ones(4, 33, dtype=torch.int64))
