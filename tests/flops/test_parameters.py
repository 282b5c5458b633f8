import dataclasses

import pytest

from mlsys_lab.configs import Experts, LatentAttention, TransformerConfig, preset
from mlsys_lab.flops import parameters
from mlsys_lab.flops.parameters import attention_parameters, mlp_parameters

SMALL = TransformerConfig("small", n_layers=3, d_model=24, n_heads=4, d_ff=40, vocab_size=11, context=8, n_kv_heads=2)


def test_kinds_of_a_small_one():
    count = parameters(SMALL)
    assert count.embedding == count.head == 11 * 24
    assert count.position == count.router == count.idle == 0
    assert count.attention == 3 * (24 * 24 + 2 * 24 * 12 + 24 * 24)
    assert count.mlp == 3 * 3 * 24 * 40
    assert count.norm == 7 * 24
    assert count.total == sum(dataclasses.astuple(count))
    assert count.non_embedding == count.attention + count.mlp + count.norm


def test_biases_count_once_each():
    none = preset("gpt2")
    bare = dataclasses.replace(none, qkv_bias=False, out_bias=False, mlp_bias=False, norm_bias=False)
    # nanoGPT's `bias=False` (its transformer_sizing.ipynb).
    assert parameters(bare).total == 124_337_664
    gained = {
        "qkv_bias": 12 * 3 * 768,
        "out_bias": 12 * 768,
        "mlp_bias": 12 * 5 * 768,
        "norm_bias": 25 * 768,
    }
    for name, more in gained.items():
        assert parameters(dataclasses.replace(bare, **{name: True})).total == 124_337_664 + more


def test_sinks_and_a_router_s_bias_are_a_number_a_head_and_an_expert():
    routed = dataclasses.replace(SMALL, experts=Experts(count=5, active=2, d_ff=7))
    more = dataclasses.replace(routed, attention_sinks=True, router_bias=True)
    before, after = parameters(routed), parameters(more)
    assert after.attention - before.attention == SMALL.n_layers * SMALL.n_heads
    assert after.router - before.router == SMALL.n_layers * 5


def test_post_norms_are_two_more_in_each_block():
    assert parameters(dataclasses.replace(SMALL, post_norms=True)).norm == (4 * SMALL.n_layers + 1) * SMALL.d_model


def test_parallel_blocks_have_one_norm_and_an_embedding_norm_is_one_more():
    assert parameters(dataclasses.replace(SMALL, parallel_blocks=True)).norm == 4 * 24
    assert parameters(dataclasses.replace(SMALL, embedding_norm=True)).norm == 8 * 24
    assert parameters(dataclasses.replace(SMALL, qk_norm=True)).norm == 7 * 24 + 3 * 2 * 6


def test_experts():
    """Two of three layers have 4 experts of which 2 are used, and one for all; the first is dense."""
    count = parameters(dataclasses.replace(SMALL, experts=Experts(4, 2, d_ff=10, shared=1, dense_layers=1)))
    expert = 3 * 24 * 10
    assert count.mlp == 3 * 24 * 40 + 2 * 5 * expert
    assert count.router == 2 * 24 * 4
    assert count.total - count.active == count.idle == 2 * 2 * expert


def test_latent_attention_with_and_without_latent_queries():
    latent = LatentAttention(q_rank=5, kv_rank=7, nope_dim=3, rope_dim=2, v_dim=4)
    config = dataclasses.replace(SMALL, n_kv_heads=0, head_dim=0, latent=latent)
    shared = 24 * (7 + 2) + 7 * 4 * (3 + 4) + 4 * 4 * 24
    assert attention_parameters(config) == 5 * 24 + 5 * 4 * 5 + shared
    assert parameters(config).norm == 7 * 24 + 3 * (5 + 7)
    straight = dataclasses.replace(config, latent=dataclasses.replace(latent, q_rank=None), out_bias=True)
    assert attention_parameters(straight) == 24 * 4 * 5 + shared + 24
    assert parameters(straight).norm == 7 * 24 + 3 * 7


def test_llama3_70b_splits_as_published():
    """jax-ml/scaling-book, applied-training.md: 56.3 + 2.1 + 12 billion."""
    count = parameters(preset("llama3-70b"))
    got = [count.mlp / 1e9, (count.embedding + count.head) / 1e9, count.attention / 1e9]
    assert got == pytest.approx([56.4, 2.1, 12.1], rel=0.01)


def test_an_mlp_of_any_width():
    assert mlp_parameters(dataclasses.replace(SMALL, mlp_bias=True), 10) == 3 * 24 * 10 + 2 * 10 + 24
    assert mlp_parameters(dataclasses.replace(SMALL, activation="relu"), 10) == 2 * 24 * 10
