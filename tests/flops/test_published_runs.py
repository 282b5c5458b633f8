"""Published layouts are the planner's best or near it, or it is known by how much not, and why."""

from __future__ import annotations

from functools import cache

import pytest

from mlsys_lab.flops.parameters import parameters
from mlsys_lab.flops.published_runs import PUBLISHED_RUNS, Comparison, PublishedRun

BY_NAME = {run.name: run for run in PUBLISHED_RUNS}
LLAMA = [run for run in PUBLISHED_RUNS if run.name.startswith("Llama")]
MEGATRON = [run for run in PUBLISHED_RUNS if run.name.startswith("Megatron")]
DENSE = [run for run in PUBLISHED_RUNS if run.config.experts is None]
FAR = {"Megatron-LM 18.4B": 1.14}
"""Planned time of the published layout over that of the best, where it is more than a tenth longer."""
SLOWEST = 0.45
"""Least share of its planned speed that a run has reached: small matrices leave more of the peak unused."""


@cache
def compared(name: str) -> Comparison:
    return BY_NAME[name].compare()


@pytest.mark.parametrize("run", DENSE, ids=lambda run: run.name)
def test_their_layout_is_near_our_best_and_no_run_beats_our_time(run: PublishedRun) -> None:
    found = compared(run.name)
    assert found.theirs.layout.devices == found.best.layout.devices == run.layout.devices
    assert {name: getattr(found.theirs.layout, name) for name in run.given} == dict(run.given)
    assert found.ratio == pytest.approx(FAR[run.name], abs=0.01) if run.name in FAR else found.ratio < 1.1
    assert SLOWEST < run.utilisation / found.utilisation < 1
    assert (found.theirs.missing_bytes > 0) == (run in LLAMA)


def test_the_largest_layouts_are_found_exactly() -> None:
    for name in ("Megatron-LM 145.6B", "Megatron-LM 1008B", "BLOOM 176B"):
        assert compared(name).best is compared(name).theirs


def test_tensor_parallel_links_are_what_the_one_far_layout_loses_by() -> None:
    (name,) = FAR
    found = compared(name)
    assert found.theirs.loss(found.best)[0] == "link"
    assert found.theirs.layout.tensor > found.best.layout.tensor


def test_deepseek_s_layout_loses_by_the_network_which_it_spares_in_ways_that_are_not_counted() -> None:
    found = compared("DeepSeek-V3")
    assert found.theirs.loss(found.best)[0] == "network"
    assert found.ratio == pytest.approx(1.55, abs=0.01)
    assert found.run.utilisation > found.utilisation


FROM_ELSEWHERE = {
    "Megatron-LM 1.7B": 4.4e15,
    "Megatron-LM 3.6B": 8.8e15,
    "Megatron-LM 7.5B": 18.2e15,
    "Megatron-LM 18.4B": 34.6e15,
    "Megatron-LM 39.1B": 70.8e15,
    "Megatron-LM 76.1B": 143.8e15,
    "Megatron-LM 145.6B": 227.1e15,
    "Megatron-LM 310.1B": 297.4e15,
    "Megatron-LM 529.6B": 410.2e15,
    "Megatron-LM 1008B": 502.0e15,
    "BLOOM 176B": 384 * 156e12,
    "Llama 3 405B, 8,192 GPUs, 8,192 tokens": 8192 * 430e12,
    "Llama 3 405B, 16,384 GPUs, 8,192 tokens": 16_384 * 400e12,
    "Llama 3 405B, 16,384 GPUs, 131,072 tokens": 16_384 * 380e12,
    "DeepSeek-V3": 2048 * 432e12,
}
"""FLOP/s of the whole run, which its source prints beside what stands in the row: the aggregate of Megatron's table 1,
BLOOM's fastest configuration, TFLOP/s a GPU in Llama's and DeepSeek's tables."""
TOKENS_A_DAY = 272.8e9
STEP_S = 19.926
"""DeepSeek-V3, arXiv:2505.09343, table 4."""


@pytest.mark.parametrize("run", PUBLISHED_RUNS, ids=lambda run: run.name)
def test_every_speed_follows_from_another_figure_of_its_source(run: PublishedRun) -> None:
    speed = run.utilisation * run.machine.peak_flops_per_s * run.layout.devices
    assert speed == pytest.approx(FROM_ELSEWHERE[run.name], rel=0.045 if run.name.startswith("BLOOM") else 0.02)


@pytest.mark.parametrize("run", MEGATRON, ids=lambda run: run.name)
def test_megatrons_models_have_the_parameters_of_their_names(run: PublishedRun) -> None:
    billions = float(run.name.removeprefix("Megatron-LM ").removesuffix("B"))
    counted = parameters(run.config)
    once = counted.total - counted.head  # table 1 counts by equation 2, to which embedding and head are one
    assert once / 1e9 == pytest.approx(billions, rel=0.005, abs=0.06)


def test_deepseeks_batch_makes_its_tokens_a_day() -> None:
    run = BY_NAME["DeepSeek-V3"]
    assert run.batch * run.tokens / STEP_S * 86_400 == pytest.approx(TOKENS_A_DAY, rel=0.001)
