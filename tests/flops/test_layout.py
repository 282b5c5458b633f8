"""How models divide among devices."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mlsys_lab.configs.presets import preset
from mlsys_lab.configs.transformer import Experts, LatentAttention, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.layout import Layout, shard
from mlsys_lab.flops.parameters import parameters

DENSE = TransformerConfig("dense", 4, d_model=16, n_heads=8, d_ff=24, vocab_size=32, context=8, n_kv_heads=4)
ROUTED = dataclasses.replace(DENSE, name="routed", experts=Experts(count=8, active=2, d_ff=8, shared=1))
WAYS = st.sampled_from([1, 2, 4])


def test_tokens_of_a_device_do_not_depend_on_how_the_model_is_divided():
    batch, tokens = 64, 128
    ways = [
        Layout(data=16),
        Layout(data=4, tensor=4),
        Layout(data=2, pipeline=2, context=4),
        Layout(data=4, tensor=4, micro_batch=2),
    ]
    assert {layout.tokens_per_device(batch, tokens) for layout in ways} == {64 * 128 / 16}
    with pytest.raises(InputError, match="multiple of 3"):
        Layout(data=3).tokens_per_device(batch, tokens)


def test_devices_and_micro_batches():
    layout = Layout(data=4, tensor=8, pipeline=2, context=2, micro_batch=3)
    assert (layout.devices, layout.replicas, layout.micro_batches(60)) == (128, 8, 5)
    assert layout.replace(tensor=1).devices == 16


@given(
    config=st.sampled_from([DENSE, ROUTED, dataclasses.replace(DENSE, position="learned"), preset("llama3-8b")]),
    tensor=WAYS,
    pipeline=WAYS,
    expert=WAYS,
)
def test_shards_sum_to_the_whole_and_what_is_copied(config, tensor, pipeline, expert):
    expert = expert if config.experts else 1
    layout = Layout(data=expert, tensor=tensor, pipeline=pipeline, expert=expert)
    held, whole = shard(config, layout), parameters(config)
    copied = whole.norm + whole.router
    experts = tensor * pipeline * expert * held.experts
    dense = tensor * pipeline * held.dense
    ends = tensor * (held.embedding + held.head)
    assert experts + dense + ends == pytest.approx(whole.total + (tensor - 1) * (copied + whole.position))


def test_a_tied_model_of_several_stages_keeps_its_embedding_twice():
    tied = dataclasses.replace(DENSE, tied=True)
    one, two = (shard(tied, Layout(pipeline=p)) for p in (1, 2))
    assert (one.embedding, one.head) == (32 * 16, 0)
    assert (two.embedding, two.head) == (32 * 16, 32 * 16)
    assert one.at(first=True, last=True) == parameters(tied).total
    assert two.at(first=True, last=False) == two.at(first=False, last=True) == two.dense + 512


def test_key_value_heads_are_copied_once_there_are_more_ranks():
    # Four key/value heads on eight ranks: half a layer's 2·D·K·H are there twice.
    held, more = shard(DENSE, Layout(tensor=4)), shard(DENSE, Layout(tensor=8))
    copied = parameters(DENSE).norm
    assert 8 * (more.dense - copied) == pytest.approx(4 * (held.dense - copied) + 4 * 16 * 2 * 4 * 2)


def test_latent_vectors_are_made_on_every_rank():
    latent = LatentAttention(q_rank=6, kv_rank=4, nope_dim=2, rope_dim=2, v_dim=2)
    config = TransformerConfig("latent", 3, 16, 8, 24, 32, 8, latent=latent)
    down = 3 * 16 * (6 + 4 + 2)
    whole = parameters(config)
    held = shard(config, Layout(tensor=2))
    assert 2 * (held.dense + held.embedding + held.head) == pytest.approx(whole.total + whole.norm + down)


@pytest.mark.parametrize(
    ("config", "layout", "said"),
    [
        (preset("llama3-8b"), {"tensor": 3}, "query heads do not divide evenly: got 32 among 3 tensor-parallel ranks"),
        (DENSE, {"pipeline": 5}, "a model chunk without a layer: got 4 layers for 5 model chunks"),
        (DENSE, {"pipeline": 2, "interleave": 4}, "a model chunk without a layer: got 4 layers for 8 model chunks"),
        (dataclasses.replace(DENSE, d_ff=21), {"tensor": 2}, "d_ff do not divide evenly: got 21 among 2"),
        (ROUTED, {"data": 6, "expert": 3}, "experts do not divide evenly: got 8 among 3 expert-parallel ranks"),
        (DENSE, {"data": 2, "expert": 2}, "dense has no experts to divide: got 2 expert-parallel ranks"),
        (
            TransformerConfig("k", 1, 12, 12, 12, 8, 8, n_kv_heads=4, position="alibi"),
            {"tensor": 6},
            "key/value heads do not divide evenly: got 4 among 6",
        ),
    ],
)
def test_a_model_that_does_not_divide_is_one_line(config, layout, said):
    with pytest.raises(InputError, match=said):
        shard(config, Layout(**layout))


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({"tensor": 0}, "Layout.tensor out of range: got 0, expected a whole number, at least 1"),
        ({"data": -2}, "Layout.data out of range: got -2"),
        ({"micro_batch": 1.5}, r"Layout.micro_batch out of range: got 1\.5"),
        ({"interleave": 2}, "a model of one stage has no chunks to interleave: got 2 of them"),
        ({"zero_stage": 4}, "unknown ZeRO stage: got 4"),
        ({"expert": 2}, "expert ranks are taken from the data ranks: got 2 of 1"),
        ({"recomputation": "ful"}, "unknown recomputation: got 'ful', .* help: did you mean 'full'?"),
    ],
)
def test_an_impossible_layout_is_one_line(layout, said):
    with pytest.raises(InputError, match=said):
        Layout(**layout)


@given(
    layers=st.integers(1, 40),
    pipeline=st.integers(1, 8),
    interleave=st.integers(1, 4),
)
def test_no_stage_is_fuller_than_one_that_has_a_layer_more_in_each_piece(layers, pipeline, interleave):
    """Dealt out one at a time, from the first piece on but to the last piece last, as a person would."""
    interleave = interleave if pipeline > 1 else 1
    assume(pipeline * interleave <= layers)
    pieces = [0] * (pipeline * interleave)
    for layer in range(layers):
        pieces[layer % len(pieces)] += 1
    stages = [sum(pieces[stage::pipeline]) for stage in range(pipeline)]
    layout = Layout(pipeline=pipeline, interleave=interleave)
    config = dataclasses.replace(DENSE, n_layers=layers)
    full, last = layout.stage_layers(config), layout.stage_layers(config, last=True)
    lacking = full * pipeline - layers
    first = layout.stage_layers(config, first=True)
    assert (first, last) == (full - (lacking > 1), full - (lacking > 0))
    assert full == interleave * max(pieces) >= max(stages)
    assert full - 1 <= last <= full and (last == full) == (min(pieces) == max(pieces))


def test_interleaved_micro_batches_go_in_whole_groups():
    layout = Layout(data=2, pipeline=4, interleave=2)
    assert layout.micro_batches(16) == 8
    with pytest.raises(InputError, match="interleaved micro-batches are a multiple of the stages: got 6 over 4"):
        layout.micro_batches(12)


def test_context_parallel_ranks_share_a_sequence():
    assert Layout(context=4).rank_tokens(12) == 3
    with pytest.raises(InputError, match="the sequence does not divide evenly: got 10 tokens among 4 context-parallel"):
        Layout(context=4).rank_tokens(10)


def test_a_batch_that_does_not_divide_is_one_line():
    with pytest.raises(InputError, match="got 10 sequences, expected a multiple of 8: 4 data-parallel ranks, 2 seq"):
        Layout(data=4, micro_batch=2).micro_batches(10)
