"""What chapter 11 computes and concludes, against arithmetic written out here."""

from __future__ import annotations

import pytest

from mlsys_lab.flops.published_runs import PUBLISHED_RUNS

PAGE = "11-model-parallel"

PEAK, PORT, NVLINK = 989.4e12, 50e9, 450e9  # an H100
D, F, LAYERS, GROUPS, HEAD, VOCABULARY = 8192, 28_672, 80, 8, 128, 128_256  # Llama 3 70B
LAYER = 2 * D * D + 2 * D * GROUPS * HEAD + 3 * D * F  # parameters of its matrices


def exactly(value):
    return pytest.approx(value, rel=1e-12)


def test_the_bound_and_the_benchmark(page) -> None:
    matrices = LAYERS * LAYER + VOCABULARY * D
    assert page.step_flops == exactly(512 * 8192 * (6 * matrices + 3 * LAYERS * 4 * D * 8193 / 2))
    assert page.floor_s == exactly(page.step_flops / 512 / PEAK)
    assert page.measured_s == exactly(8192 / 597.3)


def test_a_gated_mlp_and_a_layer_on_eight_ranks(page) -> None:
    assert max((part - page.expected).abs().max() for part in page.outputs) < 1e-14
    # 36 % for the MLP of three matrices, 55 % for the layer; two ranks over one port 70 %.
    assert page.send_ns / page.compute_ns == exactly(2 / 3 * 7 * PEAK / (F * NVLINK))
    assert page.send_ns / page.compute_ns == pytest.approx(0.358, abs=0.001)
    layer_s = (2 * LAYER + 4 * 4096 * D) / 8 / PEAK
    assert page.ratios[8] == exactly(2 * 2 * 7 / 8 * D * 2 / NVLINK / layer_s)
    assert page.ratios[8] == pytest.approx(0.546, abs=0.001)
    assert page.across == exactly(page.ratios[2] * NVLINK / PORT)


def test_bytes_with_and_without_sequence_parallelism(page) -> None:
    sharded = 2 * (2 * D + 2 * GROUPS * HEAD + 3 * F) + 4 * 64
    assert [page.without, page.with_sp] == [2 * 4 * D + sharded / 8, (2 * 4 * D + sharded) / 8]


def test_work_of_a_causal_mask(page) -> None:
    stretch = 131_072 // 16
    last = sum(range(131_072 - stretch + 1, 131_072 + 1))
    assert page.lopsided[-1] == last and sum(page.lopsided) == 131_072 * 131_073 // 2
    assert page.scores == [131_072 * 131_073 // 2 // 16] * 16


def test_the_ring_hides_from_some_tokens_on(page) -> None:
    n = page.even_tokens
    assert n == exactly(2 * 8 / 64 * PEAK / PORT * 15 / 16)
    # Keys and values of one head sent 15 times, against causal scores of n queries with 16 n keys in 8 heads.
    assert 15 * n * 2 * HEAD * 2 / PORT == exactly(4 * HEAD * 8 * n * 16 * n / 2 / PEAK)
    assert page.vs_ulysses == [exactly(8 * 8 / (64 + 8)), exactly(4)]


def test_bubbles(page) -> None:
    for name, v in (
        ("GPipe", 1),
        ("1F1B", 1),
        ("interleaved, v = 2", 2),
        ("interleaved, v = 4", 4),
        ("zero bubble, ZB-H1", 3),
    ):
        assert page.ends[name] == pytest.approx(3 * 16 * (1 + 7 / (16 * v)), rel=1e-9)
    assert [page.max_in_flight(page.schedules[name][0]) for name in ("GPipe", "1F1B")] == [16, 8]


def test_experts(page) -> None:
    # 58 layers send a token of 7,168 numbers to 8 experts and back, forward and backward.
    assert page.sent == exactly(2 * 2 * 58 * 4096 * 8 * 7168 * 2 * 63 / 64)
    # To four nodes in place of eight experts, 56 of 64 ranks elsewhere, one byte there and two back.
    assert page.to_nodes == exactly(2 * 58 * 4096 * 4 * 7168 * (1 + 2) * 56 / 64)
    assert page.peak_load[-1] < 1.25 < 2.5 < page.peak_load[0]


def test_a_layout_by_hand(page) -> None:
    """Data 32, tensor 4, pipeline 4: memory and time by parts are the planner's."""
    memory, found = list(page.memory_gb.values()), page.by_hand.memory
    counted = [found.weights, found.gradients, found.master + found.moments, found.activations]
    assert memory == [pytest.approx(size / 1e9, rel=1e-4) for size in counted]
    compute, bubble, tensor, inside, outside, pipeline = page.time_s.values()
    parts = page.by_hand.parts
    assert compute == pytest.approx(parts["model"], rel=1e-3) and bubble == pytest.approx(parts["bubble"], rel=1e-3)
    assert tensor + inside == pytest.approx(parts["link"], rel=1e-3)
    assert outside + pipeline == pytest.approx(parts["network"], rel=1e-3)


def test_layouts(page) -> None:
    assert page.best is min(page.plans, key=lambda one: one.time_s)
    assert page.usable.memory_bytes == 0.9 * page.h100.memory_bytes
    assert all(one.memory.total <= page.usable.memory_bytes for one in page.tried.values())
    assert page.best.layout.devices == 512 and page.best.layout.sequence_parallel
    # Two all-gathers and two reduce-scatters forward and backward, two gathers more, and four again with recomputation;
    # with one data-parallel rank to a node none of the gradients' traffic stays inside.
    tokens = 512 * 8192 / 64
    assert page.alone.parts["link"] == pytest.approx(14 * LAYERS * tokens * D * 2 * 7 / 8 / NVLINK, rel=1e-6)


def test_five_utilisations_of_one_run(page) -> None:
    # Printed in arXiv:2505.09343, table 4: 43.73 % and 38.94 %; 2.664 million hours of pre-training.
    assert page.moe[False] == pytest.approx(0.4373, rel=5e-3) and page.moe[True] == pytest.approx(0.3894, rel=5e-3)
    assert page.pretraining_h == pytest.approx(2.664e6, rel=2e-3)
    assert page.whole_run == pytest.approx(0.1654, abs=1e-4)


def test_published_runs(page) -> None:
    assert [one.run for one in page.compared] == list(PUBLISHED_RUNS)
    assert len(page.near) == 14


def test_problems(page) -> None:
    assert page.p1_ranks(page.h100) == exactly(1 + 1.5 * 18_944 * NVLINK / PEAK)
    assert page.p2 == exactly(2 * 4 * LAYERS * 8192 * D * 2 * 7 / 8)
    # The ring passes the keys and values of the whole sequence: 62.9 MB, 1.26 ms.
    assert page.p4_bytes == exactly(131_072 * 1 * 2 * HEAD * 2 * 15 / 16)
    assert 1e3 * page.p4_bytes / PORT == pytest.approx(1.26, abs=0.005)
    assert page.p4_flops == exactly(4 * (131_072 * 131_073 / 2 / 16) * D / 8)
    assert page.p5_room == 160 and page.p5_wanted == 384


def test_the_design(page) -> None:
    """Problem 7's steps come to the planner's memory, but for the embedding and unequal stages."""
    assert page.p7_total == pytest.approx(page.p7_plan.memory.total, rel=0.05)
    assert page.p7_plan.layout.data == 4 and not page.p7_plan.missing_bytes
    assert page.p7_best.time_s <= page.p7_plan.time_s < 1.02 * page.p7_best.time_s
    assert page.p7_tensor == pytest.approx(page.p7_plan.parts["link"], rel=0.05)
