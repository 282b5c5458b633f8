"""Least times against hand-worked ones."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.configs.presets import preset
from mlsys_lab.configs.transformer import Experts, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops import activations, bounds, cache, compute
from mlsys_lab.flops.bounds import Machine, TimeBound, Traffic, Work, least_time, machine
from mlsys_lab.flops.layout import Layout, shard
from mlsys_lab.flops.memory import RECIPES, Recipe
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.hardware import DEVICES, device

CONFIG = TransformerConfig("c", 4, d_model=16, n_heads=8, d_ff=24, vocab_size=32, context=8, n_kv_heads=4)
MIXED = RECIPES["mixed16"]


def training(config=CONFIG, *, batch=8, tokens=8, recipe=MIXED, node=8, **layout):
    return bounds.training_work(config, Layout(**layout), recipe, batch=batch, tokens=tokens, node=node)


def serving(config=CONFIG, *, sequences=1, tokens=1, past=7, weight_bytes=2, node=8, **layout):
    return bounds.serving_work(
        config,
        Layout(**layout),
        sequences=sequences,
        tokens=tokens,
        past=past,
        weight_bytes=weight_bytes,
        cache_bytes=2,
        node=node,
    )


def test_the_longest_part_is_the_bound():
    on = Machine(10.0, 1.0, 5.0, 2.0, 1.0, 8)
    bound = least_time(Work(40.0, 10.0, 2.0, 3.0), on)
    assert bound == TimeBound(4.0, 2.0, 1.0, 3.0)
    assert (bound.time_s, bound.binds, bound.margin) == (4.0, "compute", 4 / 3)
    assert least_time(Work(0.0, 10.0, 0.0, 0.0), on).margin is None
    assert least_time(Work(1.0, 1.0, 1.0, 9.0), on).binds == "network"


def test_a_training_step_on_one_device_by_hand():
    work = training()
    assert work.flops == compute.training(CONFIG, 8, 8, causal=True).model
    counts = parameters(CONFIG)
    multiplied = counts.total - counts.embedding
    # 8 micro-batches of one sequence; 16 bytes a parameter once, 14 more to and from memory for Adam.
    layer = 8 * (4 * 16 + (16 + 2 * 8 + 16) + 8 * 2 + 3 * 24) * 2
    head = 8 * (2 * 16 * 2 + 4 * 32)
    weights = 8 * 2 * 2 * multiplied
    gradients = (2 * 8 - 1) * 2 * counts.total
    adam = (2 * 12 + 2 + 2) * counts.total
    assert work.memory_bytes == weights + gradients + adam + 8 * 2 * (4 * layer + head)
    assert (work.link_bytes, work.network_bytes) == (0, 0)


def test_recomputation_adds_flops_and_reads_and_keeps_less():
    none, selective, full = (training(recomputation=kind) for kind in compute.RECOMPUTATIONS)
    once = compute.forward(CONFIG, 8, 8, causal=True)
    assert (selective.flops - none.flops, full.flops - none.flops) == (once.attention, once.layers)


def test_full_recomputation_reads_the_layers_once_more_and_not_the_head():
    def weights_read(recomputation):
        """What moves when weights are all that has bytes: 8 micro-batches of a byte a parameter, and one written."""
        only = Recipe("weights", weights=1, gradients=0, master=0, moments=0)
        counts = parameters(CONFIG)
        kept = bounds.layer_activations(CONFIG, Layout(recomputation=recomputation), only, tokens=8).total
        head = activations.head_bytes(CONFIG, 8)
        moved = training(recipe=only, recomputation=recomputation).memory_bytes
        return (moved - 8 * 2 * (4 * kept + head) - counts.total) / 8

    counts = parameters(CONFIG)
    layers = counts.total - counts.embedding - counts.head
    assert weights_read("none") == 2 * (layers + counts.head)
    assert weights_read("full") == 3 * layers + 2 * counts.head


def test_no_devices_in_a_node_is_said():
    with pytest.raises(InputError, match="node must be positive"):
        machine(device("H100"), "bf16", node=0)


@given(
    data=st.sampled_from([1, 2, 4]),
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 4]),
    context=st.sampled_from([1, 2]),
)
def test_devices_share_the_flops(data, tensor, pipeline, context):
    whole = compute.training(CONFIG, 8, 16, causal=True).model
    head = 3 * compute.forward(CONFIG, 8, 16).head
    work = training(batch=16, data=data, tensor=tensor, pipeline=pipeline, context=context)
    bubble = (pipeline - 1) / (16 / data)
    expected = ((whole - head) * (1 + bubble) / pipeline + head) / (data * tensor * context)
    assert work.flops == pytest.approx(expected)


@pytest.mark.parametrize("vocabulary", [2, 2_000])
def test_a_pipeline_goes_at_the_pace_of_its_fullest_stage(vocabulary):
    """6 layers over 4 stages are 2 + 2 + 1 + 1; the last one has the head as well."""
    config = dataclasses.replace(CONFIG, n_layers=6, vocab_size=vocabulary)
    head = 3 * compute.forward(config, 8, 16).head
    layer = (compute.training(config, 8, 16, causal=True).model - head) / 6
    assert (head > layer) == (vocabulary > 2)
    work = training(config, batch=16, pipeline=4)
    assert work.flops == pytest.approx(max(2 * layer, layer + head) + 2 * layer * 3 / 16)


def test_interleaving_divides_the_bubble_and_multiplies_the_messages():
    config = dataclasses.replace(CONFIG, n_layers=8)
    plain, two = (training(config, batch=4, pipeline=4, interleave=v, node=4) for v in (1, 2))
    head = 3 * compute.forward(config, 8, 4).head
    layers = compute.training(config, 8, 4, causal=True).model - head
    assert plain.flops - two.flops == pytest.approx(layers / 4 * (3 / 4 - 3 / 8))
    assert two.link_bytes == 2 * plain.link_bytes > 0


def test_traffic_stays_in_the_node_as_far_as_the_group_does():
    assert Traffic(7.0, 8, 1).split(8) == (7.0, 0.0)
    assert Traffic(7.0, 1, 1).split(8) == (0.0, 0.0)
    # Of 16 bytes over 16 ranks, two nodes: 7/8 within; the other node's half by eight cards.
    assert Traffic(15.0, 16, 1).split(8) == (14.0, 1.0)
    # One rank a node: everything goes by its own card.
    assert Traffic(15.0, 16, 8).split(8) == (0.0, 15.0)
    assert Traffic(15.0, 16, 1, "all-to-all").split(8) == (7.0, 8.0)
    assert Traffic(3.0, 4, 2, "neighbours").split(8) == (3.0, 0.0)
    assert Traffic(3.0, 4, 8, "neighbours").split(8) == (0.0, 3.0)


@given(
    ranks=st.sampled_from([1, 2, 4, 8, 16, 64]),
    stride=st.sampled_from([1, 2, 4, 8, 16]),
    pattern=st.sampled_from(["ring", "all-to-all", "neighbours"]),
)
def test_no_byte_is_sent_twice(ranks, stride, pattern):
    inside, beyond = Traffic(100.0, ranks, stride, pattern).split(8)
    assert 0 <= inside + beyond <= 100.0 + 1e-9
    if pattern == "all-to-all" and ranks > 1:
        assert inside + beyond == pytest.approx(100.0)


def test_each_strategy_sends_over_its_own_wires():
    # Tensor ranks within the node; data-parallel ranks, eight apart, beyond it.
    layout = Layout(data=4, tensor=8)
    gpt = preset("gpt3-1.3b")
    gpt = dataclasses.replace(gpt, n_heads=16, head_dim=128)
    traffic = bounds.training_traffic(gpt, layout, MIXED, batch=4, tokens=2048)
    work = bounds.training_work(gpt, layout, MIXED, batch=4, tokens=2048, node=8)
    held = shard(gpt, layout)
    assert work.network_bytes == pytest.approx(2 * 3 / 4 * 2 * held.at(first=True, last=True))
    assert work.link_bytes == pytest.approx(4 * 24 * 2 * 7 / 8 * 2048 * 2048 * 2)
    assert traffic["pipeline"].split(8) == traffic["context"].split(8) == traffic["expert"].split(8) == (0, 0)


@pytest.mark.parametrize(("recomputation", "again"), [("none", 0), ("full", 1)])
def test_traffic_of_every_strategy_by_hand(recomputation, again):
    """32 devices, each with 2 micro-batches of 4 tokens, and 2 of 4 layers, of which 3 have experts: 1.5 a stage."""
    routed = dataclasses.replace(CONFIG, experts=Experts(count=8, active=2, d_ff=8, dense_layers=1))
    layout = Layout(
        data=4, tensor=2, pipeline=2, context=2, expert=4, interleave=2, recomputation=recomputation, zero_stage=0
    )
    traffic = bounds.training_traffic(routed, layout, RECIPES["mixed20"], batch=8, tokens=8)
    held = shard(routed, layout)
    tokens, D, element = 2 * 4, 16, 2
    assert {name: (one.ranks, one.stride, one.pattern) for name, one in traffic.items()} == {
        "tensor": (2, 1, "ring"),
        "context": (2, 2, "ring"),
        "expert": (4, 4, "all-to-all"),
        "data": (8, 2, "ring"),
        "experts' data": (2, 8, "ring"),
        "pipeline": (2, 16, "neighbours"),
    }
    # All-reduces of attention and MLP, forward, backward, and forward again: twice the half of what is reduced.
    assert traffic["tensor"].sent_bytes == 2 * (2 + again) * 2 * (tokens * D * element)
    # Keys and values of two heads of 2 of both ranks' tokens, half of them; backward with their gradients.
    assert traffic["context"].sent_bytes == (3 + again) * 2 * (2 * tokens * 2 * (2 + 2) * element) / 2
    # There and back, to two experts each, three quarters of them elsewhere; a tensor-parallel rank takes half.
    assert traffic["expert"].sent_bytes == (2 + again) * 1.5 * 2 * (tokens / 2 * 2 * D * element) * 3 / 4
    # Gradients of 4 bytes at most, all-reduced; the fuller of the two ends; an expert's copies are fewer.
    assert traffic["data"].sent_bytes == pytest.approx(2 * 4 * (held.dense + held.head) * 7 / 8)
    assert traffic["experts' data"].sent_bytes == pytest.approx(2 * 4 * held.experts * 1 / 2)
    # Forward and backward between the chunks of two rounds; each tensor-parallel rank sends its half.
    assert traffic["pipeline"].sent_bytes == 2 * 2 * tokens * D * element / 2


def test_decoding_reads_weights_and_cache_once():
    work = serving(sequences=3, past=7)
    multiplied = parameters(CONFIG).total - parameters(CONFIG).embedding
    assert work.memory_bytes == 2 * multiplied + cache.kv_cache_bytes(CONFIG, 8, 3)
    assert work.flops == compute.decode(CONFIG, 8, 3).total
    half = serving(sequences=3, past=7, tensor=2)
    assert half.flops == work.flops / 2
    assert half.memory_bytes == pytest.approx(work.memory_bytes / 2 + parameters(CONFIG).norm * 2 / 2)


def test_a_way_through_all_stages_is_as_much_work_as_one_stage():
    one, four = serving(sequences=2), serving(sequences=2, pipeline=4)
    assert (four.flops, four.memory_bytes) == (one.flops, one.memory_bytes)
    assert four.link_bytes == 3 * 2 * 16 * 2


def test_experts_are_read_as_far_as_tokens_choose_them():
    routed = dataclasses.replace(CONFIG, experts=Experts(count=8, active=2, d_ff=8))
    expert = 4 * 8 * 3 * 16 * 8
    one, many = serving(routed, sequences=1), serving(routed, sequences=10_000)
    assert serving(routed, sequences=1, past=0).memory_bytes < one.memory_bytes
    dense = parameters(routed).total - parameters(routed).embedding - expert
    cached = cache.kv_cache_bytes(routed, 8)
    assert one.memory_bytes == pytest.approx(2 * (dense + expert / 4) + cached)
    assert many.memory_bytes == pytest.approx(2 * (dense + expert) + 10_000 * cached)
    two = serving(routed, sequences=2)
    assert two.memory_bytes == pytest.approx(2 * (dense + expert * (1 - 0.75**2)) + 2 * cached)


def test_published_bounds():
    # The scaling book's serving example: Llama 3 70B in int8 on 8 TPU v5e, 32 sequences of 8192: 17 ms a token.
    llama, v5e = preset("llama3-70b"), device("TPU v5e")
    work = bounds.serving_work(
        llama, Layout(tensor=8), sequences=32, tokens=1, past=8191, weight_bytes=1, cache_bytes=1, node=256
    )
    bound = least_time(work, machine(v5e, "int8"))
    assert (bound.binds, bound.time_s) == ("memory", pytest.approx(17e-3, rel=0.02))


def test_machines_of_the_table():
    h100 = machine(device("H100"), "bf16")
    assert h100 == Machine(989.4e12, 80 * 2**30, 3.35e12, 450e9, 50e9, 8)
    assert machine(device("T4"), "bf16").peak_flops_per_s == 65e12  # its 16 bits are fp16
    assert machine(device("H100"), "int4").peak_flops_per_s == 989.4e12
    assert machine(device("H100"), "fp8").peak_flops_per_s == 1978.9e12
    assert machine(device("TPU v5p"), "bf16").node == 8960
    assert machine(device("H100"), "bf16", node=72, network_bytes_per_s=25e9).node == 72
    for one in DEVICES:
        assert machine(one, "bf16").link_bytes_per_s >= 15e9
    with pytest.raises(InputError, match="TPU v5e has no fp32 peak"):
        machine(device("TPU v5e"), "fp32")
    with pytest.raises(InputError, match="unknown format: got 'bf17'"):
        machine(device("H100"), "bf17")
    with pytest.raises(InputError, match="network_bytes_per_s must be positive"):
        machine(device("H100"), "bf16", network_bytes_per_s=-1)


def test_what_does_not_divide_is_one_line():
    with pytest.raises(InputError, match="the sequence does not divide evenly: got 8 tokens among 3 context-parallel"):
        training(context=3)
    with pytest.raises(InputError, match="without context parallelism"):
        serving(context=2)
