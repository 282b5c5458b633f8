"""Channels scaled up and down: the function stays, equal to the bit for powers of two, and outliers appear."""

import pytest
import torch

from mlsys_lab.efficiency.blocks import observe_model
from mlsys_lab.efficiency.quantization import plant_outliers
from mlsys_lab.efficiency.quantization.folding import inner_links, norm_links, readers, scale_input
from mlsys_lab.errors import InputError
from tests.efficiency.quantization.models import ARCHITECTURES, LAYER_NORMS, TOKENS, make_model

ALL = ARCHITECTURES | {"layer norms": LAYER_NORMS}
CHANNELS, EXPONENT = [3, 17], 6


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_planted_outliers_leave_logits_equal_to_the_bit(name):
    model = make_model(**ALL[name])
    planted = plant_outliers(model, CHANNELS, EXPONENT)
    assert torch.equal(planted(TOKENS), model(TOKENS))
    for block, original in zip(planted.blocks, model.blocks, strict=True):
        x = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
        ratio = block.attention_norm(x) / original.attention_norm(x)
        assert (ratio[:, CHANNELS] == 2**EXPONENT).all()
        assert (ratio[:, [c for c in range(24) if c not in CHANNELS]] == 1).all()


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_any_scale_of_any_link_leaves_the_function(name):
    model, generator = make_model(**ALL[name]), torch.Generator().manual_seed(2)
    before = model(TOKENS)
    for block in model.blocks:
        for link in (*norm_links(block), *inner_links(block)):
            scale_input(link, torch.rand(link.consumers[0].in_features, generator=generator) + 0.5)
    torch.testing.assert_close(model(TOKENS), before, rtol=1e-3, atol=1e-4)


def test_which_layers_share_an_input():
    def counts(**changes):
        block = make_model(**changes).blocks[0]
        return [len(link.consumers) for link in norm_links(block)], len(inner_links(block)), len(readers(block))

    assert counts() == ([3, 2], 2, 5)
    assert counts(n_kv_heads=2) == ([3, 2], 1, 5)  # the values of a head belong to several query heads
    assert counts(activation="gelu") == ([3, 1], 1, 4)  # GELU of a scaled number is not a scaled GELU
    assert counts(**ARCHITECTURES["parallel blocks"]) == ([4], 2, 4)
    assert counts(**ARCHITECTURES["experts"]) == ([3, 1 + 2 * 5], 1 + 5, 14)
    assert counts(norm_weight=False) == ([], 2, 5)


@torch.no_grad()
def test_observed_activations_are_what_a_layer_multiplies():
    model = make_model()
    query, down = model.blocks[0].attention.query, model.blocks[1].mlp.down
    seen = observe_model(model, [query, down], TOKENS)
    embedded = model.blocks[0].attention_norm(model.embedding(TOKENS))
    torch.testing.assert_close(seen[query], embedded.flatten(0, 1))
    assert seen[down].shape == (TOKENS.numel(), 40)


def test_bad_outliers_are_one_line():
    model = make_model()
    for channels in ([], [24], [-1]):
        with pytest.raises(InputError, match=r"outlier channels: got .*, expected some from 0 to 23"):
            plant_outliers(model, channels, 3)
    with pytest.raises(InputError, match="exponent out of range"):
        plant_outliers(model, [0], 0)
    with pytest.raises(InputError, match="norms without weights have no outliers"):
        plant_outliers(make_model(norm_weight=False), [0], 3)
