"""Published layouts are the planner's best or near it, or it is known by how much not, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlsys_lab.flops.compute import training
from mlsys_lab.flops.planner import plan
from mlsys_lab.flops.published_runs import PUBLISHED_RUNS, PublishedRun

BY_NAME = {run.name: run for run in PUBLISHED_RUNS}
LLAMA = [run for run in PUBLISHED_RUNS if run.name.startswith("Llama")]
DENSE = [run for run in PUBLISHED_RUNS if run.config.experts is None and run not in LLAMA]
FAR = {"Megatron-LM 18.4B": 1.14}
"""Ratios of the published layout's time to that of the best, where it is more than a tenth."""

SLOWEST = 0.45
"""Least share of the planned speed that a run has reached: small matrices leave more of the peak unused."""


def utilisation(run: PublishedRun, time_s: float) -> float:
    """What the run's figure would be if a step took so long."""
    recomputation = str(run.given["recomputation"])
    steps = training(run.config, run.tokens, run.batch, recomputation=recomputation)
    flops = steps.hardware if run.hardware else steps.model
    return flops / time_s / run.machine.peak_flops_per_s / run.layout.devices


@pytest.mark.parametrize("run", DENSE, ids=lambda run: run.name)
def test_their_layout_is_near_our_best_and_no_run_beats_our_time(run: PublishedRun) -> None:
    plans = run.rank()
    theirs = run.find(plans)
    assert theirs.missing_bytes == 0
    ratio = theirs.time_s / plans[0].time_s
    if run.name in FAR:
        assert ratio == pytest.approx(FAR[run.name], abs=0.01)
        assert theirs.loss(plans[0])[0] == "link"
    else:
        assert ratio < 1.1
    assert SLOWEST < run.utilisation / utilisation(run, theirs.time_s) < 1


def test_the_largest_layouts_are_found_exactly() -> None:
    for name in ("Megatron-LM 145.6B", "Megatron-LM 1008B", "BLOOM 176B"):
        run = BY_NAME[name]
        assert run.find(plans := run.rank()) is plans[0]


@pytest.mark.parametrize("run", LLAMA, ids=lambda run: run.name)
def test_llama_s_layouts_would_be_near_our_best_if_they_fitted(run: PublishedRun) -> None:
    """Every tensor that autograd saves counts here; Llama's team frees those that are not needed (§3.3.2)."""
    means = {**run.given, "zero_stage": 1, "sequence_parallel": True}
    assert run.find(replace(run, given=means).rank()).missing_bytes > 0
    roomy = replace(run, machine=replace(run.machine, memory_bytes=130e9))
    plans = roomy.rank()
    theirs = roomy.find(plans)
    assert theirs.time_s < 1.1 * plans[0].time_s
    assert SLOWEST < run.utilisation / utilisation(run, theirs.time_s) < 1


def test_deepseek_s_layout_loses_by_the_network_which_it_spares_in_ways_that_are_not_counted() -> None:
    run = BY_NAME["DeepSeek-V3"]
    plans = plan(
        run.config,
        run.machine,
        run.recipe,
        devices=run.layout.devices,
        batch=run.batch,
        tokens=run.tokens,
        causal=False,
        given={**run.given, "tensor": 1, "pipeline": 16},
    )
    theirs = run.find(plans)
    assert theirs.loss(plans[0])[0] == "network"
    assert theirs.time_s / plans[0].time_s == pytest.approx(1.55, abs=0.02)
