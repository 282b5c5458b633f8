"""Whole models: every linear layer of the blocks pruned, block by block, the rest untouched."""

import pytest
import torch

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.efficiency.blocks import linear_layers, observe_model
from mlsys_lab.efficiency.pruning.convert import METHODS, prune
from mlsys_lab.efficiency.pruning.masks import apply_mask, two_four_mask
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer

CONFIG = TransformerConfig(
    "small", n_layers=2, d_model=32, n_heads=4, n_kv_heads=2, d_ff=48, vocab_size=31, context=32, qkv_bias=True
)
TOKENS = torch.randint(31, (4, 32), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("density", [0.25, "2:4"])
@torch.no_grad()
def test_every_linear_layer_of_the_blocks_has_zeros_and_the_model_itself_none(model, method, density):
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    pruned = prune(model, method, density, TOKENS)
    layers = linear_layers(pruned.blocks)
    assert len(layers) == 2 * 7
    for layer in layers.values():
        kept = layer.weight != 0
        assert kept.float().mean() == (0.5 if density == "2:4" else 0.25)
        if density == "2:4":
            assert (kept.view(-1, 4).sum(1) == 2).all()
        if method == "wanda":
            assert (kept.sum(1) == kept[0].sum()).all()
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    for name in ("embedding.weight", "head.weight", "norm.weight", "blocks.1.attention.query.bias"):
        assert torch.equal(pruned.get_parameter(name), before[name])
    assert pruned(TOKENS).isfinite().all()


@torch.no_grad()
def test_a_block_is_calibrated_on_the_outputs_of_the_pruned_block_before_it(model):
    pruned = prune(model, "wanda", "2:4", TOKENS)
    for block, reference in ((0, model), (1, pruned)):
        layer = model.blocks[block].attention.query
        query = reference.blocks[block].attention.query
        x = observe_model(reference, [query], TOKENS)[query]
        expected = apply_mask(layer.weight, two_four_mask(layer.weight.abs() * x.square().sum(0).sqrt()))
        assert torch.equal(pruned.blocks[block].attention.query.weight, expected)


def test_what_is_refused_is_one_line(model):
    with pytest.raises(InputError, match=r"^unknown pruning method: got 'wander', .*did you mean 'wanda'"):
        prune(model, "wander", 0.5)
    for method in ("wanda", "sparsegpt"):
        with pytest.raises(InputError, match=f"^{method} needs activations: expected token ids"):
            prune(model, method, 0.5)
        with pytest.raises(InputError, match=r"^empty calibration: got \(4, 0\), expected token ids \(B, T\)$"):
            prune(model, method, 0.5, TOKENS[:, :0])
    for method in METHODS:
        for density in (0, 1.2, "1:4"):
            with pytest.raises(InputError, match=r"^density out of range: got "):
                prune(model, method, density, TOKENS)
    narrow = Transformer(TransformerConfig("narrow", 1, d_model=18, n_heads=1, d_ff=18, vocab_size=31, context=32))
    for method in METHODS:
        with pytest.raises(InputError, match=r"^groups of 4 do not divide the inputs: got 18 inputs"):
            prune(narrow, method, "2:4", TOKENS)
    with torch.no_grad():
        narrow.blocks[0].mlp.up.weight[3, 4] = float("nan")
    with pytest.raises(InputError, match=r"^weights are not finite: got nan at \[3, 4\], 1 in all"):
        prune(narrow, "magnitude", 0.5)
