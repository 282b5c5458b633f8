"""What chapter 12 computes and concludes, against published figures and against arithmetic written out here."""

from __future__ import annotations

import pytest

from tests.oracles.catalogue import oracles
from tests.oracles.conftest import CHAPTERS

PAGE = "12-inference"

PEAK, BANDWIDTH, MEMORY = 989.4e12, 3.35e12, 80 * 2**30  # an H100
D, LAYERS, HEADS, GROUPS, HEAD, F, V = 4096, 32, 32, 8, 128, 14_336, 128_256  # Llama 3 8B
MULTIPLIED = LAYERS * (2 * D * D + 2 * D * GROUPS * HEAD + 3 * D * F) + V * D
WEIGHTS = 2 * (MULTIPLIED + (2 * LAYERS + 1) * D)  # bytes read: norms too, no embedding
HELD = WEIGHTS + 2 * V * D
TOKEN = 2 * LAYERS * 2 * GROUPS * HEAD  # bytes of cache


def exactly(value):
    return pytest.approx(value, rel=1e-12)


def pair_flops(pairs: float) -> float:
    """FLOPs of scores and weighted sums of so many pairs of positions, in all layers."""
    return 4 * LAYERS * HEADS * HEAD * pairs


COMPUTED = {
    "IN07": lambda page, i: [page.computed[alpha, drafts][0] for alpha, drafts in i["cases"]],
    "IN09": lambda page, i: [page.share * i["bw"] / 1e12, page.share],
    "QU05": lambda page, i: [
        page.bits[name]
        for name in (
            "MXFP4, groups of 32",
            "NVFP4, groups of 16",
            "int4, groups of 128",
            "NF4, scales in 8 bits",
        )
    ],
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(page, name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](page, oracle.inputs))


def test_in10_is_quoted_as_printed() -> None:
    text = (CHAPTERS / f"{PAGE}.md").read_text("utf-8")
    low, high = oracles()["IN10"].figures
    assert f'glue("held_low", "{low}"' in text and f'glue("held_high", "{high}"' in text


def test_kv02_is_the_page_s_worked_example(page) -> None:
    token = page.kept.bytes_per_token(page.llama)
    assert token == oracles()["KV02"].figures[0] == TOKEN == 2 * 32 * 2 * 8 * 128


def test_the_two_phases(page) -> None:
    matrices = 2 * (MULTIPLIED - V * D)
    prompt = 1000 * matrices + 2 * V * D + pair_flops(1000 * 1001 / 2)
    assert page.first.time_s == exactly(prompt / PEAK)
    assert page.later.time_s == exactly((WEIGHTS + 1000 * TOKEN) / BANDWIDTH)
    assert page.later.compute_s == exactly((2 * MULTIPLIED + pair_flops(1000)) / PEAK)
    assert 2.5 < page.first.compute_s / page.first.memory_s < 3.5  # "a third of that"
    assert 800 < page.first.compute_s / page.later.compute_s < 1200  # "a thousandth"


def test_without_a_cache_every_step_is_a_prefill(page) -> None:
    matrices = 2 * (MULTIPLIED - V * D)
    lengths = range(1, 513)
    uncached = sum(n * matrices + 2 * V * D + pair_flops(n * (n + 1) / 2) for n in lengths)
    cached = sum(matrices + 2 * V * D + pair_flops(n) for n in lengths)
    assert [page.uncached, page.cached] == [exactly(uncached), exactly(cached)]


def test_batches(page) -> None:
    assert page.most == (MEMORY - HELD) // (2048 * TOKEN)
    for batch, step in page.steps.items():
        assert step.bounds["decode"].time_s == exactly((WEIGHTS + batch * 2048 * TOKEN) / BANDWIDTH)
    assert page.limit == exactly(BANDWIDTH / (2048 * TOKEN))
    assert 1.9 < page.steps[64].bounds["decode"].time_s / page.steps[1].bounds["decode"].time_s < 2.2  # "about twice"
    assert page.eight == (MEMORY - HELD / 2) // (2048 * TOKEN / 2)


def test_windows_and_latent_vectors(page) -> None:
    full, windowed, reach = 10, 52, 1024
    token = 2 * 2 * 16 * 128
    assert page.cache_gb("gemma3-27b", 131_072) == exactly(token * (full * 131_072 + windowed * reach) / 1e9)
    assert page.cache_gb("gemma3-27b", 512) == exactly(token * 62 * 512 / 1e9)
    assert page.cache_gb("llama3-8b", 2048) == exactly(TOKEN * 2048 / 1e9)
    assert page.latent_intensity == exactly(128 * (512 + 64 + 512) / (512 + 64))


def test_chunks(page) -> None:
    chunk = 512 * 2 * (MULTIPLIED - V * D) + 2 * V * D
    alone = 32 * (2 * MULTIPLIED + pair_flops(2048))
    for number, time_s in enumerate(page.plans[512]):
        past = 512 * number
        flops = alone + chunk + pair_flops(512 * past + 512 * 513 / 2)
        read = WEIGHTS + (32 * 2048 + past + 512) * TOKEN
        assert time_s == exactly(max(flops / PEAK, read / BANDWIDTH))
    assert page.step_s(0, 0) == exactly((WEIGHTS + 32 * 2048 * TOKEN) / BANDWIDTH)
    assert len(page.plans[128]) == 64 and len(page.plans[8192]) == 1


def test_latency_targets(page) -> None:
    for ms, batch in page.targets.items():
        assert batch == max(0, int((ms * 1e-3 * BANDWIDTH - WEIGHTS) // (2048 * TOKEN)))


def test_problems(page) -> None:
    assert page.p2 == 2 * 64 * 2 * 8 * 128
    assert page.p3_tokens == exactly(WEIGHTS / TOKEN)
    assert page.p4_mean == sum(-n % 16 for n in range(300, 316)) / 16
    assert page.p5 == int((10e-3 * BANDWIDTH - WEIGHTS) // (8192 * TOKEN))
    assert page.p6 == max(range(30), key=lambda k: (1 - 0.8 ** (k + 1)) / 0.2 / (0.1 * k + 1))
    assert page.p7_scale.item() == pytest.approx(2 / 127, rel=1e-6)
    assert page.p7_error.max() <= 1 / 127 + 1e-9


def test_the_design_meets_its_target_with_all_reduces_that_grow_with_the_batch(page) -> None:
    weights, token, rows = 405.85e9, 2 * 126 * 8 * 128, page.p8_batch
    kib = rows * 16_384 * 2 / 1024
    assert 2048 < kib < 4096
    reduce_us = 22.1 + (33.8 - 22.1) * (kib - 2048) / 2048
    parts = [(weights + rows * 4096 * token) / (0.8 * 8 * 8e12), 252e-6 * reduce_us]
    assert sum(page.p8_parts) == pytest.approx(1e3 * sum(parts), rel=1e-4)
    assert sum(page.p8_parts) <= 15 < sum(page.p8_step_ms(rows + 1, "B200", 0.8))
    assert page.p8_bytes_us == exactly(252e6 * 1.75 * 32_768 / 450e9)
