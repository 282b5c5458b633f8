"""What layers get in a forward pass, and models converted layer by layer."""

import copy

import pytest
import torch
from torch import nn

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.efficiency.blocks import convert_linears, linear_layers, observe_model
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer

CONFIG = TransformerConfig("small", n_layers=2, d_model=8, n_heads=2, d_ff=12, vocab_size=11, context=8)
TOKENS = torch.randint(11, (3, 8), generator=torch.Generator().manual_seed(0))
MODEL = Transformer(CONFIG)


@torch.no_grad()
def test_the_input_of_a_module_is_observed_for_all_tokens():
    unused = nn.Linear(8, 8)
    seen = observe_model(MODEL, [MODEL.blocks[0], MODEL.norm, unused], TOKENS)
    assert set(seen) == {MODEL.blocks[0], MODEL.norm}
    assert torch.equal(seen[MODEL.blocks[0]], MODEL.embedding(TOKENS).flatten(0, 1))
    assert torch.equal(MODEL.predict(seen[MODEL.norm]), MODEL(TOKENS).flatten(0, 1))


def test_no_hook_stays_even_where_the_model_refuses_the_tokens():
    for tokens in (TOKENS, TOKENS + 11, TOKENS[:0]):
        try:
            observe_model(MODEL, [MODEL.norm], tokens)
        except InputError:
            assert tokens is not TOKENS
        assert not MODEL.norm._forward_pre_hooks


@torch.no_grad()
def test_without_calibration_a_layer_is_converted_with_no_activations():
    shapes = []

    def negate(layer, inputs):
        shapes.append((tuple(inputs.shape), layer.in_features))
        layer.weight.neg_()
        return layer

    model = copy.deepcopy(MODEL)
    assert convert_linears(model, negate) is model
    assert shapes == [((0, width), width) for width in (8, 8, 8, 8, 8, 8, 12) * 2]
    for name, layer in linear_layers(MODEL.blocks).items():
        assert torch.equal(model.blocks.get_submodule(name).weight, -layer.weight)


def test_calibration_without_tokens_is_one_line():
    with pytest.raises(InputError, match=r"^empty calibration: got \(3, 0\), expected token ids \(B, T\)$"):
        convert_linears(MODEL, lambda layer, _: layer, TOKENS[:, :0])
