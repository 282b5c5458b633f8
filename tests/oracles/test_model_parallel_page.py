"""What chapter 11 computes and concludes, against arithmetic written out here."""

from __future__ import annotations

import pytest

from mlsys_lab.flops.published_runs import PUBLISHED_RUNS

PAGE = "11-model-parallel"

PEAK, PORT, NVLINK = 989.4e12, 50e9, 450e9  # an H100
D, F, LAYERS, GROUPS, HEAD = 8192, 28_672, 80, 8, 128  # LLaMA 3 70B


def exactly(value):
    return pytest.approx(value, rel=1e-12)


def test_two_products_and_one_sum(page) -> None:
    assert max((part - page.whole).abs().max() for part in page.parts) < 1e-14
    assert [page.on_nvlink, page.on_network] == [exactly(F * NVLINK / PEAK), exactly(F * PORT / PEAK)]


def test_work_of_a_causal_mask(page) -> None:
    stretch = 131_072 // 16
    last = sum(range(131_072 - stretch + 1, 131_072 + 1))
    assert page.lopsided[-1] == last and sum(page.lopsided) == 131_072 * 131_073 // 2
    assert page.scores == [131_072 * 131_073 // 2 // 16] * 16


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


def test_layouts(page) -> None:
    assert page.best is min(page.plans, key=lambda one: one.time_s)
    assert page.best.mfu < page.best.parts["model"] / page.best.time_s < 1.1 * page.best.mfu  # of the busiest stage
    # Four sums of a token's width a layer with its backward pass, one gather more for the weights' gradients.
    tokens = 512 * 8192 / 64
    sends = 2 * 5 * LAYERS * tokens * D * 2 * 7 / 8
    assert page.alone.parts["link"] == pytest.approx(sends / NVLINK, rel=1e-6)


def test_published_runs(page) -> None:
    assert [one.run for one in page.compared] == list(PUBLISHED_RUNS)
    assert len(page.near) == 14


def test_problems(page) -> None:
    assert page.p2 == exactly(2 * 4 * LAYERS * 8192 * D * 2 * 7 / 8)
    # The ring passes the keys and values of the whole sequence: 62.9 MB, 1.26 ms.
    assert page.p4_bytes == exactly(131_072 * 1 * 2 * HEAD * 2 * 15 / 16)
    assert 1e3 * page.p4_bytes / PORT == pytest.approx(1.26, abs=0.005)
    assert page.p4_flops == exactly(4 * (131_072 * 131_073 / 2 / 16) * D / 8)
    assert page.p5_room == 160 and page.p5_wanted == 384
