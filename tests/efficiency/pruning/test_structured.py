"""Structured pruning: smaller dense models, equal to the larger one with the removed parts silenced."""

import pytest
import torch
from torch import nn

from mlsys_lab.configs import Experts, LatentAttention, TransformerConfig
from mlsys_lab.efficiency.pruning.structured import (
    channel_importance,
    head_importance,
    layer_importance,
    prune_channels,
    prune_heads,
    prune_layers,
    removal_error,
)
from mlsys_lab.errors import InputError
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.models import Transformer, load
from mlsys_lab.models.saving import save

SIZES = {"n_layers": 3, "d_model": 24, "n_heads": 6, "n_kv_heads": 3, "d_ff": 20, "vocab_size": 31, "context": 16}
LLAMA = TransformerConfig("llama", **SIZES, qk_norm=True)
GPT = TransformerConfig(
    "gpt", **SIZES | {"n_kv_heads": 6}, position="learned", norm="layer", norm_bias=True, activation="gelu",
    qkv_bias=True, out_bias=True, mlp_bias=True, tied=True,
)  # fmt: skip
TOKENS = torch.randint(31, (3, 16), generator=torch.Generator().manual_seed(0))
CONFIGS = pytest.mark.parametrize("config", [LLAMA, GPT], ids=lambda config: config.name)


def make(config):
    """A model whose blocks change the residual stream much, biases included."""
    torch.manual_seed(0)
    model = Transformer(config)
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            parameter.normal_(std=0.4)
    return model.double()


def is_real(model):
    """Whether the weights are those of a new model of its configuration, which then computes the same."""
    fresh = Transformer(model.config).double()
    fresh.load_state_dict(model.state_dict())
    assert sum(p.numel() for p in model.parameters()) == parameters(model.config).total
    return torch.equal(fresh(TOKENS), model(TOKENS))


@CONFIGS
@torch.no_grad()
def test_without_a_head_that_adds_nothing_the_function_is_the_same(config):
    model, importance = make(config), torch.ones(3, config.n_kv_heads)
    width = config.n_heads // config.n_kv_heads * config.head_dim
    for layer, head in enumerate((1, 0, 2)):
        model.blocks[layer].attention.out.weight[:, head * width : (head + 1) * width] = 0
        importance[layer, head] = 0
    smaller = prune_heads(model, importance, config.n_kv_heads - 1)
    torch.testing.assert_close(smaller(TOKENS), model(TOKENS), rtol=1e-10, atol=1e-10)
    assert is_real(smaller)
    group = config.n_heads // config.n_kv_heads
    assert (smaller.config.n_heads, smaller.config.head_dim) == (config.n_heads - group, config.head_dim)
    assert torch.equal(head_importance(model, TOKENS) == 0, importance == 0)
    assert (model.config, len(model.blocks[0].attention.key.weight)) == (config, config.n_kv_heads * config.head_dim)


@CONFIGS
@torch.no_grad()
def test_without_channels_that_add_nothing_the_function_is_the_same(config):
    model = make(config)
    silent = torch.stack([torch.randperm(20, generator=torch.Generator().manual_seed(layer))[:7] for layer in range(3)])
    for block, channels in zip(model.blocks, silent, strict=True):
        block.mlp.down.weight[:, channels] = 0
    importance = channel_importance(model, TOKENS)
    assert torch.equal((importance == 0).nonzero()[:, 1].view(3, 7), silent.sort().values)
    smaller = prune_channels(model, importance, 13)
    torch.testing.assert_close(smaller(TOKENS), model(TOKENS), rtol=1e-10, atol=1e-10)
    assert is_real(smaller) and smaller.config.d_ff == 13


@CONFIGS
@torch.no_grad()
def test_without_a_layer_that_adds_nothing_the_function_is_the_same(config):
    model = make(config)
    for linear in (model.blocks[1].attention.out, model.blocks[1].mlp.down):
        nn.init.zeros_(linear.weight)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
    importance = layer_importance(model, TOKENS)
    assert importance.argmin() == 1 and importance[1].abs() < 1e-12
    smaller = prune_layers(model, importance, 2)
    assert torch.equal(smaller(TOKENS), model(TOKENS))
    assert is_real(smaller) and smaller.config.n_layers == 2


@torch.no_grad()
def test_the_importance_of_a_head_is_what_attention_s_output_changes_by_without_it():
    model, (seen, out) = make(LLAMA), ([], [])
    attention = model.blocks[0].attention
    attention.out.register_forward_hook(lambda _, args, result: (seen.append(args[0]), out.append(result))[0])
    model(TOKENS)
    for head, importance in enumerate(head_importance(model, TOKENS)[0]):
        silenced = seen[0].clone()
        silenced[..., head * 8 : head * 8 + 8] = 0
        torch.testing.assert_close((attention.out(silenced) - out[0]).square().sum(), importance)


def test_the_removal_error_of_single_inputs_is_the_product_of_norms():
    w, x = torch.randn(4, 6), torch.randn(9, 6)
    expected = w.double().square().sum(0) * x.double().square().sum(0)
    torch.testing.assert_close(removal_error(w, x, 1), expected)
    torch.testing.assert_close(removal_error(w, x, 6)[0], (x.double() @ w.double().T).square().sum())


@torch.no_grad()
def test_the_most_important_parts_stay_in_their_order():
    model = make(LLAMA)
    smaller = prune_heads(model, torch.tensor([[3.0, 1, 2]] * 3), 2)
    assert torch.equal(
        smaller.blocks[2].attention.value.weight, model.blocks[2].attention.value.weight[[0, 1, 2, 3, 8, 9, 10, 11]]
    )
    assert (
        prune_layers(model, torch.tensor([1.0, 3, 2]), 2).blocks[1].mlp.up.weight.equal(model.blocks[2].mlp.up.weight)
    )
    assert prune_heads(model, torch.ones(3, 3), 3)(TOKENS).equal(model(TOKENS))


@torch.no_grad()
def test_a_smaller_model_is_saved_and_loaded_as_any_other(tmp_path):
    model = Transformer(TransformerConfig("llama", **SIZES))
    smaller = prune_layers(prune_heads(model, head_importance(model, TOKENS), 2), layer_importance(model, TOKENS), 2)
    save(smaller, tmp_path, dtype=torch.float32)
    assert torch.equal(load(tmp_path)(TOKENS), smaller(TOKENS))


@torch.no_grad()
def test_a_window_and_a_mixture_of_experts_stay():
    config = TransformerConfig("mixtral", **SIZES, experts=Experts(count=4, active=2, d_ff=8))
    torch.manual_seed(0)
    model = Transformer(config, window=4).double()
    smaller = prune_layers(prune_heads(model, head_importance(model, TOKENS), 2), torch.ones(3), 2)
    assert smaller.window == 4 and smaller(TOKENS).isfinite().all()


def test_what_is_refused_is_one_line():
    model = make(LLAMA)
    with pytest.raises(InputError, match=r"^importance of another model: got \(3, 6\), expected \(3, 3\)$"):
        prune_heads(model, torch.ones(3, 6), 2)
    with pytest.raises(InputError, match=r"^importance of another model: got \(1, 2\), expected \(1, 3\)$"):
        prune_layers(model, torch.ones(2), 2)
    for keep in (0, 21):
        with pytest.raises(InputError, match=rf"^number to keep out of range: got {keep}, expected 1 to 20$"):
            prune_channels(model, torch.ones(3, 20), keep)
    with pytest.raises(InputError, match=r"^importance scores are not finite: got nan"):
        prune_channels(model, torch.full((3, 20), float("nan")), 5)
    for importance in (head_importance, channel_importance, layer_importance):
        with pytest.raises(InputError, match=r"^empty calibration: got \(0, 16\), expected token ids \(B, T\)$"):
            importance(model, TOKENS[:0])


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"position": "alibi"}, "ALiBi in x"),
        ({"qk_norm": True, "qk_norm_all_heads": True}, "a norm of all heads in x"),
        (
            {"n_kv_heads": 6, "latent": LatentAttention(kv_rank=8, nope_dim=4, rope_dim=2, v_dim=4)},
            "latent attention in x",
        ),
    ],
)
def test_heads_that_depend_on_each_other_are_not_removed(changes, what):
    model = Transformer(TransformerConfig("x", **SIZES | changes))
    with pytest.raises(InputError, match=rf"^heads depend on each other: got {what}, expected independent heads$"):
        prune_heads(model, torch.ones(3, model.config.n_kv_heads), 1)


def test_experts_keep_their_channels_and_dense_layers_before_them_stay():
    experts = Experts(count=4, active=2, d_ff=8, dense_layers=1)
    model = Transformer(TransformerConfig("moe", **SIZES, experts=experts))
    with pytest.raises(
        InputError, match=r"^channels of a mixture of experts: got moe, expected one MLP in every layer$"
    ):
        prune_channels(model, torch.ones(3, 20), 5)
    with pytest.raises(InputError, match=r"^layers of two kinds: got moe, expected an MLP or experts in every layer$"):
        prune_layers(model, torch.ones(3), 2)
