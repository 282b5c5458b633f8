"""The whole estimate: memory by kind, bounds, speeds, costs."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.configs.presets import preset
from mlsys_lab.configs.transformer import Experts, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.bounds import machine
from mlsys_lab.flops.compute import RECOMPUTATIONS
from mlsys_lab.flops.estimate import (
    MemoryUse,
    estimate_serving,
    estimate_training,
    serving_memory,
    training_memory,
)
from mlsys_lab.flops.fitting import smaller_layouts
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.memory import RECIPES
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.hardware import device

H100 = machine(device("H100"), "bf16")
MIXED = RECIPES["mixed16"]
CONFIG = TransformerConfig("c", 4, d_model=16, n_heads=8, d_ff=24, vocab_size=32, context=8, n_kv_heads=4)
LAYOUTS = st.builds(
    dict,
    data=st.sampled_from([1, 2, 4]),
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 4]),
    context=st.sampled_from([1, 2]),
    sequence_parallel=st.booleans(),
    micro_batch=st.sampled_from([1, 2]),
    zero_stage=st.integers(0, 3),
)


def train(config=CONFIG, recipe=MIXED, batch=16, tokens=8, price=None, **layout):
    return estimate_training(config, H100, Layout(**layout), recipe, batch=batch, tokens=tokens, price_per_hour=price)


def test_7b_on_one_device_is_states_and_activations_by_hand():
    llama = preset("llama2-7b")
    one = train(llama, batch=1, tokens=4096, recomputation="full")
    n = 6_738_415_616
    assert one.memory.weights == one.memory.gradients == 2 * n
    assert (one.memory.master, one.memory.moments) == (4 * n, 8 * n)
    rows = 4096
    layer = rows * ((4 * 4096 + 4 * 4096 + 3 * 11008) * 2 + 32 * 4)
    assert one.memory.activations == 31 * rows * 4096 * 2 + layer + rows * (2 * 4096 * 2 + 4 * 32_000)
    assert not one.fits and one.memory.largest == "moments"


def test_speed_cost_and_mfu_follow_from_the_bound():
    one = train(data=2, price=3.6)
    time_s = one.bounds["step"].time_s
    assert one.tokens_per_s["step"] == 16 * 8 / time_s
    assert one.cost_per_million_tokens == {"step": pytest.approx(2 * 3.6 / 3600 / (128 / time_s) * 1e6)}
    assert one.mfu == pytest.approx(one.flops["model"] / time_s / (2 * 989.4e12))
    assert train(preset("llama3-70b"), batch=64, tokens=8192, tensor=8).mfu == pytest.approx(1.0)
    full = train(preset("llama3-70b"), batch=64, tokens=8192, tensor=8, recomputation="full")
    assert full.mfu == pytest.approx(full.flops["model"] / full.flops["hardware"])


@given(layout=LAYOUTS, name=st.sampled_from(sorted(RECIPES)))
def test_more_recomputation_and_a_higher_zero_stage_never_need_more(layout, name):
    def needs(**changes):
        return training_memory(CONFIG, Layout(**(layout | changes)), RECIPES[name], batch=32, tokens=8)

    by_recomputation = [needs(recomputation=kind).total for kind in RECOMPUTATIONS]
    assert by_recomputation == sorted(by_recomputation, reverse=True)
    by_stage = [dataclasses.replace(needs(zero_stage=stage), gathered=0.0).total for stage in range(4)]
    assert by_stage == sorted(by_stage, reverse=True)


@given(layout=LAYOUTS)
def test_states_of_all_devices_sum_to_the_whole_model_s(layout):
    layout = layout | {"pipeline": 1, "tensor": 1}
    one = training_memory(CONFIG, Layout(**(layout | {"data": 1, "context": 1})), MIXED, batch=16, tokens=8)
    many = training_memory(CONFIG, Layout(**(layout | {"zero_stage": 3})), MIXED, batch=16, tokens=8)
    replicas = layout["data"] * layout["context"]
    for kind in ("weights", "gradients", "master", "moments"):
        assert replicas * getattr(many, kind) == pytest.approx(getattr(one, kind))


def test_of_a_pipeline_the_fuller_end_counts():
    wide = dataclasses.replace(CONFIG, vocab_size=100_000)
    narrow = dataclasses.replace(CONFIG, vocab_size=2)
    for config, in_flight in ((narrow, 4), (wide, 1)):
        layer = 8 * ((4 * 16 + 48 + 3 * 24) * 2 + 8 * 4)
        head = 8 * (2 * 16 * 2 + 4 * config.vocab_size) if in_flight == 1 else 0
        got = training_memory(config, Layout(pipeline=4), MIXED, batch=16, tokens=8)
        assert got.activations == in_flight * layer + head
    two = training_memory(narrow, Layout(pipeline=2, interleave=2), MIXED, batch=16, tokens=8)
    assert two.activations == (2 + 1 / 2) * 2 * 8 * ((4 * 16 + 48 + 3 * 24) * 2 + 8 * 4)
    few = training_memory(narrow, Layout(pipeline=4), MIXED, batch=2, tokens=8)
    assert few.activations == 2 * 8 * ((4 * 16 + 48 + 3 * 24) * 2 + 8 * 4)


def test_zero_3_gathers_a_layer_at_a_time():
    got = training_memory(CONFIG, Layout(data=4, zero_stage=3), MIXED, batch=16, tokens=8)
    whole = training_memory(CONFIG, Layout(), MIXED, batch=16, tokens=8)
    assert got.weights == whole.weights / 4
    assert got.gathered == pytest.approx(2 * (16 * (16 + 8 + 8 + 16) + 3 * 16 * 24 + 2 * 16 + 16 / 4))


def test_zero_3_gathers_no_experts_that_are_divided_already():
    mixtral = preset("mixtral-8x7b")
    expert, layers = 3 * 4096 * 14336, 32

    def gathered(expert_ranks):
        layout = Layout(data=8, expert=expert_ranks, zero_stage=3)
        return training_memory(mixtral, layout, MIXED, batch=8, tokens=4096).gathered

    assert gathered(1) - gathered(8) == pytest.approx(2 * 8 * expert)
    assert gathered(1) - gathered(4) == pytest.approx(2 * 6 * expert)
    dense = parameters(mixtral).total - layers * 8 * expert - 2 * 32_000 * 4096
    assert gathered(8) == pytest.approx(2 * dense / layers)


def test_serving_by_hand():
    llama = preset("llama3-8b")
    one = estimate_serving(llama, H100, Layout(), batch=16, tokens=8192, price_per_hour=2.0)
    assert one.memory == MemoryUse(
        weights=2 * 8_030_261_248,
        activations=8192 * (2 * 4096 + 2 * 14_336) * 2 + 16 * 128_256 * 4,
        cache=16 * 8192 * 131_072,
    )
    read = 2 * (8_030_261_248 - 128_256 * 4096) + one.memory.cache
    assert one.bounds["decode"].time_s == pytest.approx(read / 3.35e12)
    assert one.tokens_per_s["decode"] == pytest.approx(16 / (read / 3.35e12))
    assert one.bounds["decode"].binds == "memory" and one.bounds["prefill"].binds == "compute"
    assert one.cost_per_million_tokens["decode"] == pytest.approx(2 / 3600 / one.tokens_per_s["decode"] * 1e6)
    assert one.fits and one.mfu is None


def test_replicas_multiply_speed_and_stages_overlap():
    llama = preset("llama3-8b")
    one = estimate_serving(llama, H100, Layout(), batch=16, tokens=1024)
    four = estimate_serving(llama, H100, Layout(data=4), batch=64, tokens=1024)
    assert four.memory == one.memory
    assert four.tokens_per_s == {phase: pytest.approx(4 * speed) for phase, speed in one.tokens_per_s.items()}
    staged = estimate_serving(llama, H100, Layout(pipeline=4), batch=16, tokens=1024)
    assert staged.memory.cache == one.memory.cache / 4
    # Four stages work on four sequences each, and read a quarter of the weights each time.
    quarter = estimate_serving(llama, H100, Layout(), batch=4, tokens=1024)
    assert staged.bounds["decode"].memory_s == pytest.approx(quarter.bounds["decode"].memory_s)
    assert staged.tokens_per_s["prefill"] == pytest.approx(4 * one.tokens_per_s["prefill"])
    lonely = estimate_serving(llama, H100, Layout(pipeline=4), batch=1, tokens=1024)
    assert lonely.tokens_per_s["decode"] == pytest.approx(1 / lonely.bounds["decode"].time_s)


@given(tensor=st.sampled_from([1, 2, 4, 8]), batch=st.integers(1, 64))
def test_tensor_parallel_serving_shares_weights_and_cache(tensor, batch):
    one = serving_memory(CONFIG, Layout(), batch=batch, tokens=8, weight_bytes=1, cache_bytes=1)
    some = serving_memory(CONFIG, Layout(tensor=tensor), batch=batch, tokens=8, weight_bytes=1, cache_bytes=1)
    assert tensor * some.cache == pytest.approx(one.cache * max(1, tensor / 4))
    assert tensor * some.weights >= one.weights


def test_it_is_plain_data():
    for one in (train(price=1.0), estimate_serving(CONFIG, H100, Layout(), batch=4, tokens=8)):
        plain = one.as_dict()
        assert json.loads(json.dumps(plain)) == plain
        assert plain["memory"]["total"] == one.memory.total and plain["fits"] is True
    assert train().as_dict()["bounds"]["step"]["binds"] in ("compute", "memory")


def test_layouts_that_may_fit_are_those_that_divide():
    names = [name for name, _ in smaller_layouts(CONFIG, Layout(data=2, tensor=2, micro_batch=2), training=True)]
    assert names == [
        "sequence parallelism",
        "ZeRO stage 1",
        "ZeRO stage 2",
        "ZeRO stage 3",
        "a micro-batch of 1",
        "full recomputation",
        "4 tensor-parallel ranks",
        "2 pipeline stages",
        "8 tensor-parallel ranks",
        "4 pipeline stages",
    ]
    assert [name for name, _ in smaller_layouts(CONFIG, Layout(tensor=8), training=False)] == [
        "2 pipeline stages",
        "4 pipeline stages",
    ]


def test_experts_are_divided_and_their_states_among_fewer_replicas():
    routed = dataclasses.replace(CONFIG, experts=Experts(count=8, active=2, d_ff=8))
    expert = 4 * 8 * 3 * 16 * 8
    whole = train(routed, data=4)
    part = train(routed, data=4, expert=4)
    assert whole.memory.weights - part.memory.weights == 2 * expert * 3 / 4
    sharded = train(routed, data=4, expert=2, zero_stage=3)
    assert 4 * sharded.memory.weights == pytest.approx(whole.memory.weights)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: train(tokens=0), "tokens of a sequence out of range: got 0"),
        (lambda: train(batch=-4), "the batch does not divide evenly: got -4 sequences"),
        (lambda: train(price=-1.0), "a price cannot be so: got -1.0"),
        (lambda: train(preset("gpt2"), tokens=2048), "gpt2 has no positions for that many tokens: got 2048, expected"),
        (
            lambda: training_memory(CONFIG, Layout(context=2), MIXED, batch=1, tokens=7),
            "the sequence does not divide evenly: got 7 tokens among 2 context-parallel ranks",
        ),
        (
            lambda: train(tokens=6, tensor=4, sequence_parallel=True),
            "sequence parallelism does not divide evenly: got 6 tokens among 4",
        ),
        (lambda: train(tensor=3), "query heads do not divide evenly: got 8 among 3"),
        (
            lambda: estimate_serving(CONFIG, H100, Layout(data=2), batch=3, tokens=8),
            "got 3 sequences, expected a multiple of 2 data-parallel ranks",
        ),
    ],
)
def test_what_cannot_be_is_one_line(call, said):
    with pytest.raises(InputError, match=said):
        call()
