"""Activation bytes against the equations of Korthikanti et al. (arXiv:2205.05198)."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.configs.presets import preset
from mlsys_lab.configs.transformer import Experts, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops import activations
from mlsys_lab.flops.compute import RECOMPUTATIONS

GPT3 = preset("gpt3-175b")
TABLE_2 = {
    (1, False, "none"): 34 + 80,
    (8, False, "none"): 10 + 24 / 8 + 80 / 8,
    (8, True, "none"): (34 + 80) / 8,
    (8, False, "selective"): 10 + 24 / 8,
    (8, True, "selective"): 34 / 8,
    (1, False, "full"): 2,
}


@pytest.mark.parametrize(("tensor", "sequence_parallel", "recomputation"), TABLE_2)
def test_table_2_for_gpt3(tensor, sequence_parallel, recomputation):
    kept = activations.layer(
        GPT3, 2048, 3, tensor=tensor, sequence_parallel=sequence_parallel, recomputation=recomputation, dropout=True
    )
    expected = TABLE_2[tensor, sequence_parallel, recomputation] * 2048 * 3 * 12288
    assert kept.total == pytest.approx(expected, rel=1e-12)


def test_without_dropout_and_with_a_fused_kernel():
    # Dropout keeps 2·D bytes in two masks, and a mask and a result of N·T scores.
    T, D, N = 2048, 12288, 96
    plain = activations.layer(GPT3, T)
    assert activations.layer(GPT3, T, dropout=True).total - plain.total == T * (2 * D + 3 * N * T)
    assert activations.layer(GPT3, T, fused_attention=True).scores == T * N * 4
    assert activations.layer(GPT3, T, element_bytes=4).total == 2 * plain.total
    assert activations.layer(GPT3, T, key_tokens=2 * T).scores == 2 * plain.scores


def test_grouped_heads_swiglu_and_parallel_blocks_by_hand():
    config = TransformerConfig("c", 4, d_model=8, n_heads=4, d_ff=12, vocab_size=9, context=6, n_kv_heads=2)
    kept = activations.layer(config, 6, element_bytes=1)
    assert kept == activations.LayerActivations(6 * 32, 6 * (8 + 4 + 4 + 8), 6 * 4 * 6, 6 * 48)
    # Four devices, two heads: each keeps half of all keys and values.
    assert activations.layer(config, 6, tensor=4, element_bytes=1).attention == 6 * (2 + 2 + 2 + 2)
    beside = dataclasses.replace(config, parallel_blocks=True)
    assert activations.layer(beside, 6, element_bytes=1).replicated == 6 * 16


def test_experts_keep_what_they_are_sent():
    experts = Experts(count=8, active=2, d_ff=5, shared=1, dense_layers=1)
    config = TransformerConfig("c", 4, 8, 4, d_ff=12, vocab_size=9, context=6, experts=experts)
    kept = activations.layer(config, 6, element_bytes=1)
    assert kept.mlp == 6 * 4 * (12 + 3 * 3 * 5) / 4
    assert kept.replicated == 6 * (4 * 8 + 2 * 2 * 8 * 3 / 4)


@given(
    layers=st.integers(1, 40),
    in_flight=st.integers(1, 16),
    tensor=st.sampled_from([1, 2, 4, 8]),
    sequence_parallel=st.booleans(),
    fused=st.booleans(),
    dropout=st.booleans(),
    tokens_each=st.integers(1, 512),
    name=st.sampled_from(["gpt2-xl", "llama3-8b", "mixtral-8x7b", "palm-8b", "deepseek-v3", "gpt3-125m"]),
)
def test_more_recomputation_never_keeps_more(
    layers, in_flight, tensor, sequence_parallel, fused, dropout, tokens_each, name
):
    each = [
        activations.layer(
            preset(name),
            tokens_each * tensor,
            tensor=tensor,
            sequence_parallel=sequence_parallel,
            recomputation=kind,
            fused_attention=fused,
            dropout=dropout,
        )
        for kind in RECOMPUTATIONS
    ]
    kept = [activations.stack(one, each[0], layers=layers, in_flight=in_flight) for one in each]
    assert all(more >= less for more, less in pairwise(kept))
    assert kept[0] == pytest.approx(layers * in_flight * each[0].total)
    # One layer's backward pass at a time has all that the layer computed again.
    assert kept[2] == pytest.approx(layers * in_flight * each[2].total + each[0].total - each[2].total)


@given(tokens_each=st.integers(1, 512), tensor=st.sampled_from([1, 2, 4, 8, 16]), batch=st.integers(1, 4))
def test_with_tensor_and_sequence_parallelism_the_parts_sum_to_the_whole(tokens_each, tensor, batch):
    tokens = tokens_each * tensor
    whole = activations.layer(GPT3, tokens, batch, dropout=True)
    part = activations.layer(GPT3, tokens, batch, tensor=tensor, sequence_parallel=True, dropout=True)
    assert tensor * part.total == pytest.approx(whole.total)
    replicated = activations.layer(GPT3, tokens, batch, tensor=tensor, dropout=True)
    assert tensor * replicated.total == pytest.approx(whole.total + (tensor - 1) * whole.replicated)


def test_the_head_and_checkpoints_by_hand():
    assert activations.head_bytes(GPT3, 2048, 2) == 4096 * (4 * 12288 + 4 * 50257)
    assert activations.head_bytes(GPT3, 2048, tensor=8) == 2048 * (4 * 12288 + 4 * 50257 / 8)
    assert activations.saved_bytes(4e6, 3 * 8192, 80) == 2 * 8192 * 4e6 * 3 * 80


def test_what_cannot_be_is_refused():
    said = "sequence parallelism does not divide evenly: got 2049 tokens among 8 tensor-parallel ranks"
    with pytest.raises(InputError, match=said):
        activations.layer(GPT3, 2049, tensor=8, sequence_parallel=True)
    assert activations.layer(GPT3, 2049, tensor=8).replicated == activations.layer(GPT3, 2049).replicated
    with pytest.raises(InputError, match="unknown recomputation"):
        activations.layer(GPT3, 1, recomputation="some")
