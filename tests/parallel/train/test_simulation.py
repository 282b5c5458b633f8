"""Simulated steps: compute, bubbles and messages of each kind of parallelism add up to the closed forms."""

from __future__ import annotations

import pytest

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.flops import compute
from mlsys_lab.flops.bounds import Machine
from mlsys_lab.flops.communication import all_reduce_bytes, bubble, data_parallel_bytes, tensor_parallel_bytes
from mlsys_lab.flops.layout import Layout, shard
from mlsys_lab.flops.memory import RECIPES
from mlsys_lab.parallel.train.simulation import LATENCY_S, simulate_step

CONFIG = TransformerConfig("c", 8, d_model=64, n_heads=8, d_ff=128, vocab_size=1000, context=128)
TOKENS = 128
QUICK = Machine(1e12, 1e11, 1e12, link_bytes_per_s=1e30, network_bytes_per_s=1e30, node=8)
"""A machine on which bytes cost nothing."""


def end_s(layout: Layout, batch: int, machine: Machine = QUICK) -> float:
    return simulate_step(CONFIG, layout, machine, RECIPES["fp32"], batch=batch, seq_len=TOKENS).end_s


def compute_s(batch: int, devices: int, recomputation: str = "none") -> float:
    flops = compute.training(CONFIG, TOKENS, batch, causal=True, recomputation=recomputation)
    return flops.hardware / devices / QUICK.peak_flops_per_s


def test_one_rank_takes_as_long_as_its_flops() -> None:
    assert end_s(Layout(), 4) == pytest.approx(compute_s(4, 1))
    assert end_s(Layout(recomputation="full"), 4) == pytest.approx(compute_s(4, 1, "full"))


@pytest.mark.parametrize("micro_batches", [4, 16])
def test_stages_idle_as_long_as_the_closed_form_and_the_head_says(micro_batches: int) -> None:
    stages = 4
    timeline = simulate_step(
        CONFIG, Layout(pipeline=stages), QUICK, RECIPES["fp32"], batch=micro_batches, seq_len=TOKENS
    )
    head = 3 * compute.forward(CONFIG, TOKENS, 1, causal=True).head / QUICK.peak_flops_per_s
    layers = (compute_s(1, 1) - head) / stages  # of a micro-batch on a stage
    assert timeline.busy_s(0) == pytest.approx(micro_batches * layers)
    least = micro_batches * layers * (1 + bubble(stages, micro_batches)) + micro_batches * head
    assert timeline.end_s == pytest.approx(least + 2 * (stages - 1) * LATENCY_S)


@pytest.mark.parametrize(
    ("interleave", "stage_layers"),
    [(1, [4, 4, 4, 4]), (2, [4, 4, 4, 4]), (4, [4, 4, 4, 4]), (1, [3, 4, 3, 3]), (2, [3, 4, 4, 3]), (2, [1, 2, 2, 1])],
)
def test_uneven_and_interleaved_stages_idle_as_the_closed_form_says(interleave: int, stage_layers: list[int]) -> None:
    layers, micro_batches = sum(stage_layers), 8
    config = TransformerConfig("d", layers, d_model=1024, n_heads=8, d_ff=4096, vocab_size=1, context=TOKENS)
    layout = Layout(pipeline=4, interleave=interleave)
    timeline = simulate_step(config, layout, QUICK, RECIPES["fp32"], batch=micro_batches, seq_len=TOKENS)
    layer_s = compute.training(config, TOKENS, micro_batches, causal=True).hardware / layers / QUICK.peak_flops_per_s
    busy = [timeline.busy_s(rank) / layer_s for rank in range(4)]
    assert busy == pytest.approx(stage_layers, rel=1e-3)
    ideal_s, is_even = max(stage_layers) * layer_s, len(set(stage_layers)) == 1
    expected = ideal_s * (1 + bubble(4, micro_batches, interleave=interleave))
    assert ideal_s < timeline.end_s < 1.01 * expected
    if is_even:
        assert timeline.end_s == pytest.approx(expected, rel=2e-3)


def test_tensor_ranks_wait_for_their_messages() -> None:
    slow = Machine(1e12, 1e11, 1e12, link_bytes_per_s=1e9, network_bytes_per_s=1e9, node=8)
    sent = tensor_parallel_bytes(CONFIG, TOKENS, 4, layers=8, element_bytes=4)
    steps = 8 * 2 * 4 * (4 - 1)  # of each layer four all-reduces, each of two rounds
    assert end_s(Layout(tensor=4), 1, slow) == pytest.approx(compute_s(1, 4) + sent / 1e9 + steps * LATENCY_S)


def test_gradients_overlap_with_the_backward_pass_until_the_link_is_too_slow() -> None:
    hidden, exposed = (
        Machine(1e12, 1e11, 1e12, link_bytes_per_s=rate, network_bytes_per_s=rate, node=8) for rate in (1e12, 1e6)
    )
    layers = shard(CONFIG, Layout(data=4)).dense * 4
    assert end_s(Layout(data=4), 4, hidden) < compute_s(4, 4) + 8 * 2 * 3 * LATENCY_S
    least = all_reduce_bytes(layers, 4) / 1e6
    assert least < end_s(Layout(data=4), 4, exposed) < least + compute_s(4, 4) + 8 * 2 * 3 * LATENCY_S


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_what_the_stages_of_zero_send(zero_stage: int) -> None:
    slow = Machine(1e12, 1e11, 1e12, link_bytes_per_s=1e3, network_bytes_per_s=1e3, node=8)
    layers = shard(CONFIG, Layout(data=4)).dense * 4
    layout = Layout(data=4, zero_stage=zero_stage)
    timeline = simulate_step(CONFIG, layout, slow, RECIPES["fp32"], batch=8, seq_len=TOKENS)
    sent = data_parallel_bytes(layers, layers, 4, zero_stage=zero_stage, micro_batches=2)
    assert timeline.busy_s(0, "collectives") == pytest.approx(sent / 1e3, rel=1e-4)


@pytest.mark.parametrize("ranks", [64, 512])
def test_a_layout_of_many_ranks(ranks: int) -> None:
    layout = Layout(data=ranks // 8, tensor=2, context=2, pipeline=2, zero_stage=1)
    slow = Machine(1e12, 1e11, 1e12, link_bytes_per_s=1e11, network_bytes_per_s=1e10, node=8)
    timeline = simulate_step(CONFIG, layout, slow, RECIPES["fp32"], batch=2 * layout.data, seq_len=TOKENS)
    assert timeline.ranks == ranks
    assert timeline.end_s > compute_s(2 * layout.data, ranks)
