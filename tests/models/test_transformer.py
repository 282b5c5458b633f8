from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlsys_lab.configs import PRESETS, Experts, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops import parameters
from mlsys_lab.models import Transformer
from tests.sampling import sample

SMALL = TransformerConfig("small", n_layers=2, d_model=24, n_heads=4, d_ff=40, vocab_size=11, context=8, n_kv_heads=2)
MIXTURE = dataclasses.replace(SMALL, experts=Experts(5, 2, d_ff=12, shared=1, dense_layers=1))


@st.composite
def configs(draw: st.DrawFn) -> TransformerConfig:
    """Any small decoder that can be built: every kind of position, norm, activation, head and bias together."""
    flag = st.booleans()
    groups, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    layers, norm = draw(st.integers(1, 3)), draw(st.sampled_from(["rms", "layer"]))
    experts = None
    if draw(flag):
        count = draw(st.integers(1, 4))
        experts = Experts(
            count,
            active=draw(st.integers(1, count)),
            d_ff=draw(st.integers(1, 9)),
            shared=draw(st.integers(0, 2)),
            dense_layers=draw(st.integers(0, layers - 1)),
        )
    return TransformerConfig(
        "drawn",
        n_layers=layers,
        d_model=draw(st.integers(1, 13)),
        n_heads=groups * group,
        d_ff=draw(st.integers(1, 17)),
        vocab_size=draw(st.integers(1, 19)),
        context=draw(st.integers(1, 7)),
        n_kv_heads=groups,
        head_dim=4 * draw(st.integers(1, 2)),
        position=draw(st.sampled_from(["learned", "rotary", "alibi"])),
        norm=norm,
        activation=draw(st.sampled_from(["swiglu", "geglu", "gelu", "gelu_tanh", "relu"])),
        qkv_bias=draw(flag),
        out_bias=draw(flag),
        mlp_bias=draw(flag),
        norm_bias=(weighted := draw(flag)) and norm == "layer" and draw(flag),
        norm_weight=weighted,
        qk_norm=(normed := draw(flag)),
        qk_norm_all_heads=normed and draw(flag),
        embedding_norm=draw(flag),
        pre_norms=draw(flag),
        post_norms=draw(flag),
        parallel_blocks=draw(flag),
        scaled_embedding=draw(flag),
        tied=(tied := draw(flag)),
        head_bias=not tied and draw(flag),
        partial_rotary_factor=draw(st.sampled_from([1.0, 0.5])),
        experts=experts,
    )


def count(model: Transformer) -> int:
    return sum(p.numel() for p in model.parameters())


@given(configs())
@settings(max_examples=40)
@torch.no_grad()
def test_any_decoder_has_the_parameters_that_are_counted_and_gives_logits(config):
    model = Transformer(config)
    assert count(model) == parameters(config).total
    logits = model(torch.zeros(2, config.context, dtype=torch.int64))
    assert logits.shape == (2, config.context, config.vocab_size) and logits.isfinite().all()


BUILT = [name for name, config in PRESETS.items() if not (config.attention_sinks or config.router_bias)]


@pytest.mark.parametrize("name", sample(BUILT, 3))
def test_published_decoders_have_the_parameters_that_are_counted(name):
    """Of mixtures the dense layers and one with experts: to make all of their modules takes half a minute."""
    config = PRESETS[name]
    if config.experts:
        config = dataclasses.replace(config, n_layers=config.experts.dense_layers + 1)
    with torch.device("meta"):
        model = Transformer(config)
    kinds = parameters(config)
    assert count(model) == kinds.total
    assert sum(p.numel() for name, p in model.named_parameters() if ".router." in name) == kinds.router
    assert sum(p.numel() for name, p in model.named_parameters() if "norm" in name) == kinds.norm


@pytest.mark.parametrize("position", ["learned", "rotary", "alibi"])
@torch.no_grad()
def test_no_token_sees_a_later_one(position):
    torch.manual_seed(0)
    model = Transformer(dataclasses.replace(MIXTURE, position=position)).double()
    tokens = torch.randint(11, (3, 8))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5], rtol=0, atol=1e-14)
    assert not torch.allclose(before[:, 5:], after[:, 5:], rtol=0, atol=1e-6)


@pytest.mark.parametrize("position", ["learned", "rotary", "alibi"])
@torch.no_grad()
def test_only_learned_positions_tell_equal_tokens_apart(position):
    """Where all tokens are equal, so are all values, and any weighted mean of them: relative positions do nothing."""
    torch.manual_seed(0)
    logits = Transformer(dataclasses.replace(SMALL, position=position)).double()(torch.full((1, 8), 3))
    assert torch.allclose(logits, logits[:, :1], rtol=0, atol=1e-14) == (position != "learned")


@torch.no_grad()
def test_experts_as_one_sum_over_all_of_them():
    torch.manual_seed(0)
    layer = Transformer(MIXTURE).double().blocks[1].mlp
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    scores = layer.router(x)  # (B, T, E)
    kept = scores >= scores.topk(2).values[..., -1:]
    weights = scores.masked_fill(~kept, -torch.inf).softmax(-1)
    expected = sum(weights[..., i, None] * expert(x) for i, expert in enumerate(layer.experts)) + layer.shared[0](x)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-14)


@torch.no_grad()
def test_a_parallel_block_adds_both_from_one_norm():
    torch.manual_seed(0)
    block = Transformer(dataclasses.replace(SMALL, parallel_blocks=True, position="learned")).double().blocks[0]
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    h = block.attention_norm(x)
    torch.testing.assert_close(block(x, None, None), x + block.attention(h, None, None) + block.mlp(h), rtol=0, atol=0)


def test_every_parameter_gets_a_gradient():
    torch.manual_seed(0)
    config = dataclasses.replace(MIXTURE, qkv_bias=True, mlp_bias=True, out_bias=True, qk_norm=True, tied=True)
    model = Transformer(config)
    model(torch.randint(11, (9, 8))).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_the_first_loss_is_that_of_guessing():
    torch.manual_seed(0)
    config = dataclasses.replace(SMALL, d_model=96, n_heads=8, vocab_size=50)
    tokens = torch.randint(50, (16, 8))
    loss = torch.nn.functional.cross_entropy(Transformer(config)(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(torch.tensor(50.0).log().item(), abs=0.05)


def test_weights_begin_with_the_deviations_of_gpt_2():
    torch.manual_seed(0)
    block = Transformer(dataclasses.replace(SMALL, d_model=256, n_layers=8)).blocks[0]
    assert block.mlp.up.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.mlp.down.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert block.attention.out.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 7), (0, 5), (2, 0)])
@torch.no_grad()
def test_odd_and_empty_batches(shape):
    for config in (SMALL, MIXTURE, dataclasses.replace(SMALL, position="alibi")):
        assert Transformer(config)(torch.zeros(shape, dtype=torch.int64)).shape == (*shape, 11)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (torch.zeros(9, dtype=torch.int64), r"got \(9,\) of torch\.int64, expected integers \(B, T\), T up to 8"),
        (torch.zeros(1, 9, dtype=torch.int64), r"got \(1, 9\)"),
        (torch.zeros(1, 3), r"got \(1, 3\) of torch\.float32"),
        (torch.tensor([[0, 11]]), "token outside the vocabulary: got 0 to 11, expected 0 to 10"),
        (torch.tensor([[0, -1]]), "token outside the vocabulary: got -1 to 0"),
    ],
)
def test_tokens_that_do_not_fit(tokens, words):
    with pytest.raises(InputError, match=words):
        Transformer(SMALL)(tokens)


@pytest.mark.parametrize("flag", ["attention_sinks", "router_bias"])
def test_sinks_and_a_router_s_bias_are_refused_in_a_line(flag):
    with pytest.raises(InputError, match="sinks and a router's bias are not built here: got small, expected neither"):
        Transformer(dataclasses.replace(SMALL, **{flag: True}))


@pytest.mark.gpu
@torch.no_grad()
def test_logits_on_the_gpu_are_those_of_the_cpu():
    torch.manual_seed(0)
    for position in ("learned", "rotary", "alibi"):
        model = Transformer(dataclasses.replace(MIXTURE, position=position)).double()
        tokens = torch.randint(11, (2, 8))
        on_cpu = model(tokens)
        torch.testing.assert_close(model.cuda()(tokens.cuda()).cpu(), on_cpu, rtol=0, atol=1e-12)
