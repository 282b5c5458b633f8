"""What chapter 04 counts and concludes, against published figures and against arithmetic written out here."""

from __future__ import annotations

import math
from collections import Counter
from time import sleep

import numpy as np
import pytest
from torch.utils.flop_counter import flop_registry

from tests.oracles.catalogue import oracles

PAGE = "04-gpu-model"

# GPT-2 small and the page's step.
L, D, N, V, B, T = 12, 768, 12, 50_257, 8, 1024
PEAK, BANDWIDTH, UNITS = 989.4e12, 3350e9, 132
CLOCK, TENSOR_CLOCK = 1.98e9, 1.83e9


def exactly(value):
    return pytest.approx(value, rel=1e-12)


def test_the_arithmetic_of_the_step(page) -> None:
    """Six FLOPs for each weight that multiplies and token, and attention over every pair of positions."""
    weights = L * 12 * D**2 + V * D
    assert page.model_flops == B * T * (6 * weights + 3 * L * 4 * T * D)
    assert page.compute_s == exactly(page.model_flops / PEAK)
    assert page.block_flops == 6 * B * T * L * 12 * D**2 == 8 * (72 * D**2 * 1024 * L)  # eight times chapter 3's
    assert page.head_flops == 6 * B * T * V * D


def test_lanes_and_their_peak(page) -> None:
    lanes = oracles()["GP01"].figures[0]
    assert page.lanes == lanes == UNITS * 4 * 32  # "four schedulers, and each 32 lanes"
    assert page.vector_peak == pytest.approx(page.h100.peak("fp32"), rel=1e-3)
    assert page.resident == UNITS * 2048


def test_lanes_at_work_by_hand(page) -> None:
    # A warp of by_lane reads and writes once on each side; of by_warp on one side only. All 256 accesses are there.
    assert page.active[page.by_lane] == (4 * 4, 0.5)
    assert page.active[page.by_warp] == (4 * 2, 1.0)
    # x[0] by all lanes, turn k by the 32 − k lanes that get that far, y by all lanes.
    turns = [32, *range(31, 0, -1), 32]
    assert page.active[page.prefix_sums] == (len(turns), exactly(sum(turns) / len(turns) / 32))


def test_the_levels_of_memory(page) -> None:
    sizes = {name: size for name, (size, _) in page.levels.items()}
    assert sizes["registers"] == UNITS * 65_536 * 4
    assert sizes["L1 and shared"] == sizes["registers"] == pytest.approx(34.6e6, rel=1e-3)
    assert page.h100.shared_bytes_per_unit * UNITS < sizes["registers"] < sizes["L2"] < 100e6 < sizes["memory (HBM)"]
    assert page.shared_rate == pytest.approx(UNITS * 128 * TENSOR_CLOCK, rel=1e-3)
    assert page.pi / page.shared_rate == exactly(4 * 1024 / 128)  # of four tensor cores and 32 banks
    rates = [rate for _, rate in page.levels.values() if rate]
    assert rates == sorted(rates, reverse=True)


def test_the_three_ways_of_a_warp(page) -> None:
    steps = page.ways_data["steps"]
    assert [step["taken"] for step in steps] == [4, 5, 32, 4]
    assert [step["least"] for step in steps] == [4, 4, 4, 4]
    assert page.strided.efficiency == 1 / 8


def test_bytes_in_flight(page) -> None:
    assert page.in_flight == exactly(BANDWIDTH * 500 / CLOCK)
    assert page.bandwidth_fraction(16, 4) == exactly(16 * 32 * 4 / (page.in_flight / UNITS))
    assert (
        page.bandwidth_fraction(16, 16) == page.bandwidth_fraction(16, 4, loads=4) == 1.0
    )  # "the same 16 warps suffice"
    assert page.bandwidth_fraction(64, 2) < 1.0
    assert 48 < page.per_unit / 128 < 64


def test_the_occupancies_that_are_spoken_of(page) -> None:
    assert (page.heavy.warps, page.heavy.occupancy, page.heavy.limits) == (16, 0.25, ("registers",))
    assert (page.whole.blocks, page.whole.occupancy, page.whole.limits) == (1, 0.5, ("registers",))
    assert page.held[128, 64, 100].limits == ("shared memory",)
    assert page.occupancy(page.h100, 256, registers=33) == page.occupancy(page.h100, 256, registers=40)


def test_published_intensities_and_ridges(page) -> None:
    found = dict(zip(("RL01", "RL02", "RL04", "RL03"), page.intensities.values(), strict=True))
    for name, intensity in found.items():
        oracles()[name].check(intensity)
    oracles()["RL07"].check(page.ridges["V100"])
    assert page.ridges["V100"] * 2 < found["RL01"] and page.ridges["H100"] < found["RL01"] < 1.1 * page.ridges["H100"]
    published = oracles()["GP12"]
    assert page.unary == pytest.approx(published.figures[1], rel=0.05)  # from 1,555 GB/s, where the source has 1.5 TB/s
    assert round(page.unary, -2) == 100


def test_the_ledger_does_the_step_s_flops_and_no_more(page) -> None:
    assert page.parts["matmuls"][1] == page.model_flops
    fused = sum(row[2] for row in page.steps["fused", 8] if row[1])
    # Six products of scores become seven, since the backward pass computes the scores again, and each needs only the
    # T(T + 1)/2 pairs of a query with a key that is not later.
    assert fused == page.model_flops - 6 * L * 2 * B * T**2 * D + 7 * L * B * T * (T + 1) * D


def test_the_ledger_counts_each_tensor_once(page) -> None:
    """A linear layer's kernel: x, W, the bias and y in 16 bits; views nothing; a softmax in and out."""
    rows = page.steps["plain", 8]
    addmm = next(row for row in rows if row[0] == "addmm")
    assert (*addmm[1:3], sum(addmm[3])) == (True, 2 * B * T * D * D, 2 * (2 * B * T * D + D * D + D))
    softmax = [row for row in rows if row[0] == "_softmax"]
    assert [row[1:] for row in softmax] == [(False, B * N * T * T, [2 * B * N * T * T] * 2)] * L
    assert not [row for row in rows if "view" in row[0] or row[0] in ("transpose.int", "t", "expand")]
    assert {row[0].split(".")[0] for row in rows if row[1]} == {"addmm", "mm", "bmm"}
    assert page.torch.ops.aten.mm in flop_registry


def test_kernels_that_touch_a_part_of_a_tensor_are_charged_for_that_part(page) -> None:
    rows = {row[0]: sum(row[3]) for row in page.steps["plain", 8]}
    logits, ids = 2 * B * T * V, 8 * B * T
    assert rows["embedding"] == ids + 2 * 2 * B * T * D  # a row per token, read and written
    assert rows["nll_loss_forward"] == pytest.approx(2 * B * T + ids, abs=8)  # and the loss and its divisor
    assert rows["nll_loss_backward"] == pytest.approx(logits + ids, abs=8)  # writes the gradient, reads no logit


def test_bounds_of_the_step(page) -> None:
    """Every tensor through HBM; and, as the strict bound, 50 MiB of each tensor for nothing."""
    assert 1e3 * page.least_s["plain", 8] == pytest.approx(25.3, abs=0.05)
    assert 1e3 * page.least_s["fused", 8] == pytest.approx(10.9, abs=0.05)
    for name in ("plain", "fused"):
        strict = math.fsum(
            max(
                work / PEAK if product else 0,
                sum(max(0, size - 50 * 2**20) for size in sizes) / BANDWIDTH,
            )
            for _, product, work, sizes in page.steps[name, 8]
        )
        assert page.strict_s[name] == exactly(strict)
        assert page.compute_s < strict < page.least_s[name, 8]


def test_who_takes_the_time(page) -> None:
    """The shares add up, and the products' bound is not the step's."""
    rows = page.steps["plain", 8]
    times = [max(work / PEAK if product else 0, sum(sizes) / BANDWIDTH) for _, product, work, sizes in rows]
    assert page.least_s["plain", 8] == exactly(math.fsum(times))
    others = math.fsum(t for t, row in zip(times, rows, strict=True) if not row[1])
    assert page.other_time == pytest.approx(others / math.fsum(times), rel=1e-9)
    assert page.other_flops < 0.002 and 0.5 < page.other_time < 0.6
    # Scores in 16 bits: scaled, masked and normalised is three reads and three writes, and four and three backward.
    scores = 2 * B * N * T * T
    least = L * (6 + 7) * scores / BANDWIDTH
    assert page.parts["scale, mask, softmax"][3] == pytest.approx(least, rel=0.01)
    # Two products forward and four backward of scores with queries, keys or values, all read or written once.
    moved, work = B * N * (2 * T * 64 + T**2) * 2, B * N * 2 * T**2 * 64
    assert page.score_s == exactly(6 * L * moved / BANDWIDTH)
    assert page.score_compute_s == exactly(6 * L * work / PEAK)
    assert page.written_s == exactly(page.parts["scale, mask, softmax"][3] + page.score_s - page.score_compute_s)


def test_a_single_sequence_saves_five_copies_a_layer(page) -> None:
    names = [Counter(row[0] for row in page.steps["plain", batch]) for batch in (8, 1)]
    assert names[0] - names[1] == {"clone": 5 * L} and not names[1] - names[0]


def test_the_host_issues_the_step_s_own_kernels(page) -> None:
    model, ids = page.toy_model, page.toy_ids
    model.zero_grad()
    assert {p.dtype for p in model.parameters()} == {page.torch.float32}
    with page.Ledger() as log:
        page.F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    assert [row[0] for row in log.rows] == [row[0] for row in page.steps["plain", 1]]
    # CPU time, so that waiting for a busy processor does not count: asleep, a call takes next to none.
    assert page.cpu_s(lambda: sleep(0.05)) < 0.02 and page.host_s > 0


def test_the_answer(page) -> None:
    for (name, batch), share in page.mfu_bound.items():
        model_flops = page.model_flops * batch / B
        assert share == pytest.approx(model_flops / PEAK / page.least_s[name, batch], rel=1e-9)
    assert (
        0.25
        < page.mfu_bound["plain", 8]
        < 0.3
        < 0.6
        < page.mfu_bound["fused", 8]
        < 1
        < page.compute_s / page.ideal_s
        < 1.1
    )  # MFU counts the masked half
    assert page.mfu_bound["plain", 8] < page.on_a100  # the question's third, and "the faster the tensor cores"
    assert page.per_launch_us["fused", 1] < page.per_launch_us["plain", 1] < page.per_launch_us["plain", 8]


def test_which_of_three_explains_a_call(page, monkeypatch) -> None:
    """By the page's own rule, with the processor's figures put in place of measured ones."""
    for name, value in {"floor_s": 1e-6, "cpu_beta": 1e10, "cpu_pi": 5e10}.items():
        monkeypatch.setitem(page.names, name, value)
    mostly = {}
    for name, (_, size, work) in page.calls.items():
        three = page.explained(size, work)
        mostly[name] = max(three, key=three.get)
    assert list(mostly.values()) == ["overhead"] * 3 + ["memory"] * 2 + ["compute"]


def test_problems_on_peaks(page) -> None:
    oracles()["GP13"].check(page.p1_flops)
    assert page.p1_clock == pytest.approx(1.83e9, rel=1e-3)
    oracles()["GP04"].check(page.p1_fp32_clock[80e12] / 1e9)
    assert page.p1_lanes == oracles()["GP01"].figures[1]
    assert page.b200.peak("fp32") == 75e12
    oracles()["RL15"].check(page.p6[1e15])
    assert page.p6[990e12] == pytest.approx(oracles()["RL16"].figures[0], rel=0.003)
    assert page.p6[1.979e15] == pytest.approx(2 * page.h100.ridge_point("bf16"), rel=1e-3)


def test_problem_2_by_counting_iterations(page) -> None:
    def used(turns):
        warps = np.asarray(turns).reshape(2, 32)
        return warps.sum() / (32 * warps.max(axis=1).sum())

    assert page.p2["mixed"] == exactly(used(page.p2_lengths)) == exactly(50 / 90)
    assert page.p2["sorted"] == exactly(used(np.sort(page.p2_lengths))) == 1.0


def test_problems_on_what_is_held(page) -> None:
    oracles()["GP08"].check(page.p3[1024].occupancy)
    assert (page.p3[1024].by["shared memory"], page.p3[1024].limits) == (11, ("warps", "registers"))
    assert {page.p3[threads].occupancy for threads in (768, 512, 256)} == {1.0}
    assert page.p4.warps == oracles()["GP06"].figures[0]
    assert page.p4_bytes == exactly(page.in_flight / (UNITS * 8 * 32))


def test_problems_on_the_roofline(page) -> None:
    short, long = page.p5.values()
    oracles()["GP05"].check(short.intensity, 1e6 * short.time_s, 1e3 * long.time_s)
    assert page.resident > 2**16 and short.time_s < page.latency_s  # a trip to memory outlasts the whole bound
    few, many = page.p7.values()
    printed = oracles()["GP03"].figures
    assert 1e6 * few.time_s == pytest.approx(printed[0], rel=0.01)
    assert 1e6 * many.time_s == pytest.approx(printed[1] * 2.3e15 / page.b200.peak("bf16"), rel=0.01)
    assert (few.limit, many.limit) == ("memory", "compute")


def test_gelu_from_bytes_to_time(page) -> None:
    elements = B * T * 3072
    assert page.gelu_s == exactly(4 * elements / BANDWIDTH)
    assert page.read.taken == 2 and page.read.efficiency == 1.0  # 64 bytes
    warps = {key: launch[0] for key, launch in page.launches.items()}
    assert warps == {(32, 2): 64, (128, 2): 16, (128, 16): 16}
    needed = BANDWIDTH / 2 * 500 / CLOCK / UNITS  # reads are half of the traffic
    for (_, size), (held, reading, time) in page.launches.items():
        assert reading == held * 32 * size
        assert time == exactly(page.gelu_s / min(1, reading / needed))
    assert (page.gelu_blocks, page.gelu_wave) == (12_288, UNITS * 8)


def test_the_design_of_a_step(page) -> None:
    """Each saving from the sizes: six passes over the logits become two, and GELU and bias gradients go."""
    logits = 2 * B * T * V
    assert page.p8_ms["loss"] == pytest.approx(1e3 * 6 * logits / BANDWIDTH, rel=1e-3)
    assert page.p8_loss_fused == exactly(1e3 * 2 * logits / BANDWIDTH)
    assert page.p8_ms["gelu"] == exactly(1e3 * L * 5 * 2 * B * T * 3072 / BANDWIDTH)
    assert page.p8_after == exactly(1e3 * page.ideal_s / 0.75 + (page.p8_bound - 1e3 * page.ideal_s) / 0.9)
    assert 0.5 < 1e3 * page.compute_s / page.p8_before < 0.6 < 1e3 * page.compute_s / page.p8_after
    assert page.p8_bound < 1e3 * page.least_s["fused", 8] and 5e-3 * page.p8_kernels < page.p8_after
    assert page.p8_adam_ms == exactly(1e3 * 28 * 124_439_808 / BANDWIDTH / 0.9)


def test_matmul_throughput_of_an_sm(page) -> None:
    growth = [page.per_sm[name] for name in ("A100 80GB", "H100", "B200")]
    assert growth[1] > 2 * growth[0] and growth[2] > 2 * growth[1]  # "more than doubled"
