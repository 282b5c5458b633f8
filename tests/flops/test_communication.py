"""Bytes sent by each parallel strategy."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.configs.transformer import Experts, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops import communication as comm

CONFIG = TransformerConfig("c", n_layers=4, d_model=8, n_heads=4, d_ff=12, vocab_size=9, context=16, n_kv_heads=2)


def ring(devices, chunk_bytes):
    """Bytes that one rank sends in a ring reduce-scatter: a chunk a step, on all but one step of a round."""
    return sum(chunk_bytes for _ in range(devices - 1))


@given(devices=st.integers(1, 64), chunk_bytes=st.integers(0, 10**6))
def test_collectives_send_what_a_ring_sends(devices, chunk_bytes):
    size_bytes = devices * chunk_bytes
    assert comm.gather_bytes(size_bytes, devices) == ring(devices, chunk_bytes)
    assert comm.all_reduce_bytes(size_bytes, devices) == 2 * ring(devices, chunk_bytes)


def test_section_7_of_zero():
    # Ψ parameters in 16 bits, very many ranks: 2, 2, 2 and 3 Ψ elements.
    psi_bytes, ranks = 2.0, 10**9
    sent = [comm.data_parallel_bytes(psi_bytes, psi_bytes, ranks, zero_stage=stage) / 2 for stage in range(4)]
    assert sent == pytest.approx([2, 2, 2, 3], rel=1e-6)
    assert comm.data_parallel_bytes(2.0, 2.0, 1, zero_stage=3) == 0


def test_micro_batches_multiply_what_is_not_kept_whole():
    sent = [comm.data_parallel_bytes(2.0, 4.0, 2, zero_stage=stage, micro_batches=5) for stage in range(4)]
    assert sent == [(0 + 8) / 2, (2 + 4) / 2, (2 + 20) / 2, (20 + 20) / 2]


def test_megatron_s_four_all_reduces_a_layer():
    tensor = comm.tensor_parallel_bytes(CONFIG, 16, 4, layers=3)
    assert tensor == 4 * 3 * comm.all_reduce_bytes(16 * 8 * 2, 4)
    once = comm.gather_bytes(16 * 8 * 2, 4) * 3
    assert comm.tensor_parallel_bytes(CONFIG, 16, 4, layers=3, sequence_parallel=True) == 10 * once
    assert comm.tensor_parallel_bytes(CONFIG, 16, 4, layers=3, recomputation="full") == 12 * once
    assert comm.tensor_parallel_bytes(CONFIG, 16, 4, layers=3, training=False) == 4 * once
    beside = dataclasses.replace(CONFIG, parallel_blocks=True)
    assert comm.tensor_parallel_bytes(beside, 16, 4, layers=3) == tensor / 2


def test_a_divided_vocabulary_sends_as_much_as_half_a_layer_and_the_loss():
    tokens, devices = 16, 4
    once = comm.gather_bytes(tokens * 8 * 2, devices)
    sent = comm.vocabulary_parallel_bytes(CONFIG, tokens, devices)
    assert sent == (2 * once, 2 * once, 3 * tokens * 2 * (devices - 1))
    assert sent.embedding + sent.head == comm.tensor_parallel_bytes(CONFIG, tokens, devices, layers=1) / 2
    divided = comm.vocabulary_parallel_bytes(CONFIG, tokens, devices, sequence_parallel=True)
    assert divided == (3 * once, 2 * once, sent.loss)


def test_a_stage_sends_its_output_and_tensor_ranks_a_part_of_it():
    assert comm.pipeline_bytes(CONFIG, 16) == 16 * 8 * 2
    assert comm.pipeline_bytes(CONFIG, 16, tensor=4) == 16 * 8 * 2 / 4


@given(devices=st.integers(1, 12), both_ways=st.booleans())
def test_links_of_a_ring_carry_what_its_blocks_pass(devices, both_ways):
    """Every block from device to device, the shorter way where both are used, half each way where they are as long."""
    gathered, exchanged, far = [0.0] * devices, [0.0] * devices, 0
    for start in range(devices):
        for away in range(1, devices):
            clockwise = 1.0 if not both_ways or 2 * away < devices else 0.5 if 2 * away == devices else 0.0
            far = max(far, away if clockwise else 0)
            for hop in range(away):
                exchanged[(start + hop) % devices] += clockwise / devices**2
            # The block that all others get is handed on: it passes the link before each.
            gathered[(start + away - 1) % devices] += clockwise / devices
    assert max(gathered) == pytest.approx(comm.ring_link_bytes(1, devices, both_ways=both_ways))
    assert max(exchanged) == pytest.approx(comm.all_to_all_link_bytes(1, devices, both_ways=both_ways))
    assert far == comm.ring_steps(devices, both_ways=both_ways)


@pytest.mark.parametrize("axes", [(5,), (4, 4), (3, 3, 3)])
def test_links_of_a_torus_carry_what_turns_round_its_axes_pass(axes):
    """A part of the array for each axis, which takes the axes in its own order: rings on them in turn, both ways."""
    devices = math.prod(axes)
    carried = [0.0] * len(axes)  # by a link of each axis, one direction
    for turn in range(len(axes)):
        held = 1 / devices / len(axes)
        for axis in range(turn, turn + len(axes)):
            length = axes[axis % len(axes)]
            carried[axis % len(axes)] += held * (length - 1) / 2
            held *= length
    assert carried == pytest.approx([comm.torus_link_bytes(1, axes)] * len(axes))
    assert comm.torus_link_bytes(1, axes[:1]) == comm.ring_link_bytes(1, axes[0])


def test_a_torus_without_axes_is_refused():
    with pytest.raises(InputError, match="at least one axis"):
        comm.torus_link_bytes(1, [])


def test_tokens_go_to_their_experts_and_back():
    routed = dataclasses.replace(CONFIG, experts=Experts(count=8, active=2, d_ff=6))
    assert comm.expert_parallel_bytes(routed, 16, 4, layers=3) == 2 * 3 * (16 * 2 * 8 * 2) * 3 / 4
    assert comm.expert_parallel_bytes(CONFIG, 16, 4, layers=3) == 0


def test_keys_and_values_go_round_the_ring():
    whole = 16 * 2 * (2 + 2) * 2
    assert comm.context_parallel_bytes(CONFIG, 16, 4, layers=3) == 3 * whole * 3 / 4
    assert comm.context_parallel_bytes(CONFIG, 16, 4, layers=3, tensor=2) == 3 * whole / 2 * 3 / 4
    assert comm.context_parallel_bytes(CONFIG, 16, 4, layers=3, tensor=4) == 3 * whole / 2 * 3 / 4


def test_ulysses_exchanges_tokens_for_heads():
    # Of 4 tokens queries and results of 4 heads, keys and values of 2, each 2 wide in 16 bits; 3 of 4 parts leave.
    assert comm.ulysses_bytes(CONFIG, 4, 4, layers=3) == 3 * (4 * 2 * (4 + 2) * 2 * 2) * 3 / 4


@given(stages=st.integers(1, 32), micro_batches=st.integers(1, 64))
def test_the_bubble_is_what_a_schedule_drawn_out_shows(stages, micro_batches):
    # GPipe with a forward and a backward of one unit each: the last stage starts stages - 1 late, and ends as late.
    makespan = 2 * (stages - 1 + micro_batches)
    busy = 2 * micro_batches
    assert comm.bubble(stages, micro_batches) == pytest.approx((makespan - busy) / busy)


def test_limits_of_strategies():
    assert comm.critical_tokens(990e12, 300e9) == 3300
    assert comm.critical_tokens(990e12, 400e9, active_share=4 / 128) == 79200
    width = comm.partial_sums_width(6.0, 2.0)  # all FLOPs at 6 a second, or 4 bytes a sum at 2
    assert 2 * width / 6 == 4 / 2
    assert comm.tensor_limit(28672, 2200e9, 1e9) == pytest.approx(28672 / 2200)
    tokens, devices, d_ff = 4.19e6, 8960, 28672

    def sent(ways):
        return 2 * d_ff * ways / (devices * 2) + 2 * tokens / ways

    best = comm.best_data_ways(tokens, devices, d_ff, data_axes=2)
    assert all(sent(best) < sent(best * other) for other in (0.5, 0.9, 1.1, 2))
    # At the critical number of tokens, compute at intensity 1 and the two kinds of traffic in turn take the same time.
    critical = comm.mixed_critical_tokens(d_ff, 1.0, data_axes=2)
    n, B, D = 100, critical * 100, 64
    ways = comm.best_data_ways(B, n, d_ff, data_axes=2)
    traffic = 2 * D * d_ff * ways / (n * 2) + 2 * B * D / ways
    assert traffic == pytest.approx(2 * B * D * d_ff / n)
    assert math.isclose(comm.mixed_critical_tokens(d_ff, 2.0), 4 * comm.mixed_critical_tokens(d_ff, 1.0))


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match=r"unknown recomputation: got 'ful', .* did you mean 'full'"):
        comm.tensor_parallel_bytes(CONFIG, 16, 4, layers=3, recomputation="ful")
