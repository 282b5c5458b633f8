"""FLOPs against hand-worked and published numbers."""

from __future__ import annotations

import dataclasses

import pytest

from mlsys_lab.configs.presets import preset
from mlsys_lab.configs.transformer import Experts, LatentAttention, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops import compute
from mlsys_lab.flops.parameters import parameters

TINY = TransformerConfig("tiny", n_layers=2, d_model=6, n_heads=3, d_ff=10, vocab_size=7, context=8, position="learned")
LATENT = LatentAttention(q_rank=None, kv_rank=5, nope_dim=4, rope_dim=2, v_dim=3)


def megatron(n_layers, d_model, n_heads):
    return TransformerConfig(
        "m", n_layers, d_model, n_heads, 4 * d_model, 51_200, 2048, activation="gelu", position="learned", norm="layer"
    )


def test_each_multiplication_by_hand():
    # 4 tokens, 16 pairs; L=2, D=6, N=3, H=2, F=10 in three matrices, V=7.
    once = compute.forward(TINY, 4)
    assert once == compute.Flops(
        query=2 * 4 * 2 * 36,
        key_value=2 * 4 * 2 * 72,
        scores=2 * 16 * 2 * 6,
        values=2 * 16 * 2 * 6,
        output=2 * 4 * 2 * 36,
        mlp=2 * 4 * 2 * 180,
        router=0,
        head=2 * 4 * 42,
    )
    assert once.total == 576 + 1152 + 384 + 384 + 576 + 2880 + 336
    assert (once.attention, once.layers) == (768, 5952)
    assert compute.forward(TINY, 4, batch=5).total == 5 * once.total
    assert compute.attention_share(TINY, 4) == pytest.approx(768 / 6288)


def test_a_causal_mask_lets_half_of_the_pairs_and_the_diagonal_through():
    assert compute.forward(TINY, 4, causal=True).attention == 768 * 10 / 16
    prompt, more = compute.forward(TINY, 5, causal=True), compute.forward(TINY, 3, causal=True, past=5)
    assert prompt.total + more.total == compute.forward(TINY, 8, causal=True).total


@pytest.mark.parametrize("tokens", [0, 1, 3, 8])
@pytest.mark.parametrize("past", [0, 1, 2, 3, 4, 9])
def test_pairs_are_those_that_can_be_counted(tokens, past):
    """Query i stands at past + i; causal keys are 0 to there, of which a window leaves the last ones."""
    places = [past + i for i in range(tokens)]
    assert compute.pairs(tokens, past) == tokens * (past + tokens)
    assert compute.pairs(tokens, past, causal=True) == sum(place + 1 for place in places)
    for window in (1, 2, 3, 5, 20):
        assert compute.pairs(tokens, past, window=window) == sum(min(place + 1, window) for place in places)


def test_decoding_token_by_token_costs_what_a_causal_forward_pass_does():
    assert sum(compute.decode(TINY, context).total for context in range(1, 9)) == (
        compute.forward(TINY, 8, causal=True).total
    )


def test_logits_of_the_last_token_alone():
    assert compute.forward(TINY, 4, head_tokens=1).head == 2 * 42


def test_grouped_heads_experts_and_latent_attention_by_hand():
    grouped = dataclasses.replace(TINY, n_kv_heads=1, activation="gelu")
    once = compute.forward(grouped, 1)
    assert (once.key_value, once.mlp, once.scores) == (2 * 2 * 24, 2 * 2 * 120, 2 * 2 * 6)
    experts = dataclasses.replace(TINY, experts=Experts(count=9, active=2, d_ff=5, shared=1, dense_layers=1))
    once = compute.forward(experts, 1)
    assert (once.mlp, once.router) == (2 * (180 + 3 * 3 * 30), 2 * 54)
    latent = dataclasses.replace(TINY, position="rotary", head_dim=0, latent=LATENT)
    once = compute.forward(latent, 1)
    assert once.query == 2 * 2 * 6 * 3 * 6
    assert once.key_value == 2 * 2 * (6 * (5 + 2) + 5 * 3 * (4 + 3))
    assert (once.scores, once.values, once.output) == (2 * 2 * 3 * 6, 2 * 2 * 3 * 3, 2 * 2 * 3 * 3 * 6)
    ranked = dataclasses.replace(latent, latent=dataclasses.replace(LATENT, q_rank=4))
    assert compute.forward(ranked, 1).query == 2 * 2 * 4 * (6 + 18)


def test_twice_forward_backward_and_what_is_recomputed():
    once = compute.forward(TINY, 4, 3)
    steps = {kind: compute.training(TINY, 4, 3, recomputation=kind) for kind in compute.RECOMPUTATIONS}
    assert all(step.model == 3 * once.total for step in steps.values())
    assert [step.recomputed for step in steps.values()] == [0, once.attention, once.layers]
    assert steps["full"].hardware == 3 * once.total + once.layers


@pytest.mark.parametrize(("n_layers", "d_model", "n_heads", "batch"), [(96, 12288, 96, 1536), (128, 25600, 160, 3072)])
def test_full_recomputation_is_equation_3_of_narayanan(n_layers, d_model, n_heads, batch):
    config, T, V = megatron(n_layers, d_model, n_heads), 2048, 51_200
    printed = 96 * batch * T * n_layers * d_model**2 * (1 + T / (6 * d_model) + V / (16 * n_layers * d_model))
    assert compute.training(config, T, batch, recomputation="full").hardware == pytest.approx(printed, rel=1e-12)


@pytest.mark.parametrize(("n_layers", "d_model", "n_heads"), [(48, 6144, 64), (96, 12288, 96), (105, 20480, 128)])
def test_korthikanti_s_two_equations(n_layers, d_model, n_heads):
    config, T, V = megatron(n_layers, d_model, n_heads), 2048, 51_200
    linear, head = 72 * T * n_layers * d_model**2, V / (12 * n_layers * d_model)
    model = compute.training(config, T, recomputation="selective")
    assert model.model == pytest.approx(linear * (1 + T / (6 * d_model) + head), rel=1e-12)
    assert compute.korthikanti_hardware(config, T) == pytest.approx(linear * (1 + T / (3 * d_model) + head), rel=1e-12)
    # One more pass over scores and weighted sums is a third of what the printed equation adds.
    assert 3 * model.recomputed == pytest.approx(compute.korthikanti_hardware(config, T) - model.model, rel=1e-9)


def test_where_six_n_errs():
    # Attention makes it too small, in long sequences; an embedding of its own makes it too large, in small models.
    llama = preset("llama3-8b")
    assert compute.six_n_ratio(llama, 128) == pytest.approx(1.07, abs=0.005)
    assert compute.six_n_ratio(llama, 8192) == pytest.approx(0.84, abs=0.01)
    share = compute.attention_share(llama, 8192)
    counted = (1 - share) * (1 + llama.vocab_size * llama.d_model / (parameters(llama).total - 128_256 * 4096))
    assert compute.six_n_ratio(llama, 8192) == pytest.approx(counted, rel=1e-3)
    # Without embedding, norms and attention it is exact: every other parameter multiplies once a token.
    matrices = parameters(TINY).attention + parameters(TINY).mlp + parameters(TINY).head
    once = compute.forward(TINY, 4)
    assert compute.two_n(matrices, 4) == once.total - once.attention
    assert compute.six_n(matrices, 4) == 3 * compute.two_n(matrices, 4)


def test_rules_of_kaplan_and_palm():
    tiny = parameters(TINY)
    assert compute.kaplan_forward_per_token(TINY, 8) == 2 * tiny.non_embedding + 2 * 2 * 8 * 6
    assert compute.palm_training_per_token(TINY, 8) == 6 * tiny.total + 12 * 2 * 6 * 8
    palm = compute.palm_training_per_token(preset("palm-540b"), 2048, 540.35e9)
    assert palm == 6 * 540.35e9 + 12 * 118 * 48 * 256 * 2048


def test_the_share_of_attention_is_half_at_the_crossover():
    gpt3 = preset("gpt3-175b")
    for causal in (False, True):
        tokens = round(compute.attention_crossover(gpt3, causal=causal))
        assert compute.attention_share(gpt3, tokens, causal=causal) == pytest.approx(0.5, abs=1e-4)
    # With F = 4D in three matrices and N·H = D the ratio to all other multiplications in layers is T/8D.
    llama = dataclasses.replace(preset("llama2-7b"), d_ff=4 * 4096)
    once = compute.forward(llama, 8192)
    assert once.attention / (once.layers - once.attention) == pytest.approx(8192 / (8 * 4096))
    assert once.attention == once.query + once.key_value + once.output


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match="logits for tokens that there are not: got 5, expected 0 to 4"):
        compute.forward(TINY, 4, head_tokens=5)
    with pytest.raises(InputError, match=r"unknown recomputation: got 'all', expected one of none, selective, full"):
        compute.training(TINY, 4, recomputation="all")
