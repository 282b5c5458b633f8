"""What chapter 10 computes and concludes, against published figures and against arithmetic written out here."""

from __future__ import annotations

import math

import pytest

from tests.oracles.catalogue import oracles

PAGE = "10-data-parallel"

PEAK, PORT, NVLINK, PCIE = 989.4e12, 50e9, 450e9, 63e9  # an H100
D, LAYERS, GROUPS, HEAD, F, V = 4096, 32, 8, 128, 14_336, 128_256  # Llama 3 8B
PSI = LAYERS * (2 * D * D + 2 * D * GROUPS * HEAD + 3 * D * F + 2 * D) + 2 * V * D + D
BATCH = 512 * 8192


def exactly(value):
    return pytest.approx(value, rel=1e-12)


def test_ft01_is_the_page_s_rate_of_failures(page) -> None:
    hours, thousand_gpu_hours = oracles()["FT01"].figures
    assert page.card_s / 3.6e6 == pytest.approx(thousand_gpu_hours, rel=1e-3)
    assert page.between_16k / 3600 == pytest.approx(hours, rel=1e-3)
    assert page.every_16k == exactly(math.sqrt(2 * 60 * page.between_16k))


def test_ranks_and_one_process_agree(page) -> None:
    assert max((part - page.alone).abs().max() for part in page.parts) < 1e-15


def test_critical_tokens(page) -> None:
    assert page.psi == PSI
    assert [page.flat, page.rails, page.inside] == [exactly(PEAK / rate) for rate in (PORT, 8 * PORT, NVLINK)]
    assert page.rails > page.inside  # "the larger of the last two counts": rails do
    for cards, (compute_s, flat_s, rails_s) in page.splits.items():
        assert compute_s == exactly(4 * PSI * BATCH / cards / PEAK)
        assert flat_s == exactly(4 * PSI * (cards - 1) / cards / PORT) == exactly(8 * rails_s)
    assert page.compute_512 == exactly(6 * PSI * BATCH / 512 / PEAK)
    assert page.rails_512 == exactly(6 * PSI * 511 / 512 / (8 * PORT))
    most = BATCH / page.rails
    assert 6 * PSI * BATCH / most / PEAK == exactly(6 * PSI / (8 * PORT))  # there the two are equal


def test_buckets(page) -> None:
    for ranks, latency_s, rate, name in ((8, 1e-6, NVLINK, "8 GPUs, NVLink"), (64, 5e-6, PORT, "64 GPUs, network")):
        for count, ratio in page.slowdowns[name].items():
            whole = 2 * (ranks - 1) * (latency_s + 2e9 / ranks / rate)
            each = 2 * (ranks - 1) * (latency_s + 2e9 / count / ranks / rate)
            # Buckets leave as their share of the backward pass ends, one behind the other.
            ends = whole / 2
            for number in range(count):
                ends = max(ends, whole / 2 + whole * (number + 1) / count) + each
            assert ratio == pytest.approx(ends / (1.5 * whole), rel=1e-9)


def test_what_the_stages_send_and_keep(page) -> None:
    sent = {0: (1.5, 0), 1: (0.75, 0.75), 2: (0.75, 0.75), 3: (0.75, 1.5)}
    assert {stage: tuple(parts) for stage, parts in page.sent.items()} == {
        stage: tuple(map(exactly, parts)) for stage, parts in sent.items()
    }
    numel = 8 * 16 + 16 + 16 * 4 + 4
    kept = [outcome.results[0][0] for outcome in page.runs.values()]
    assert kept == [2 * 8 * numel] + 3 * [2 * 8 * numel / 4]
    assert list(page.by_stage.values()) == [exactly(PSI * per / 1e9) for per in (16, 4 + 12 / 64, 2 + 14 / 64, 16 / 64)]


def test_hybrid_and_offload(page) -> None:
    assert page.across == exactly(2 * 63 / 64 * 2 * PSI / 8)
    assert page.everywhere == exactly(511 / 512 * 6 * PSI / 8)
    assert page.offload_s == exactly(2 * PSI / PCIE)
    assert page.offload_tokens == exactly(2 / PCIE * PEAK / 6)
