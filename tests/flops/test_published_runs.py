"""Published layouts are the planner's best or near it, or it is known by how much not, and why."""

from __future__ import annotations

import pytest

from mlsys_lab.flops.published_runs import PUBLISHED_RUNS, PublishedRun

LLAMA = [run for run in PUBLISHED_RUNS if run.name.startswith("Llama")]
DENSE = [run for run in PUBLISHED_RUNS if run.config.experts is None]
FAR = {"Megatron-LM 18.4B": 1.14}
"""Planned time of the published layout over that of the best, where it is more than a tenth longer."""
SLOWEST = 0.45
"""Least share of its planned speed that a run has reached: small matrices leave more of the peak unused."""


@pytest.mark.parametrize("run", DENSE, ids=lambda run: run.name)
def test_their_layout_is_near_our_best_and_no_run_beats_our_time(run: PublishedRun) -> None:
    found = run.compare()
    assert found.theirs.layout.devices == found.best.layout.devices == run.layout.devices
    assert {name: getattr(found.theirs.layout, name) for name in run.given} == dict(run.given)
    assert found.ratio == pytest.approx(FAR[run.name], abs=0.01) if run.name in FAR else found.ratio < 1.1
    assert SLOWEST < run.utilisation / found.utilisation < 1
    assert (found.theirs.missing_bytes > 0) == (run in LLAMA)


def test_the_largest_layouts_are_found_exactly() -> None:
    exact = {run.name for run in DENSE if run not in LLAMA and (found := run.compare()).best is found.theirs}
    assert exact >= {"Megatron-LM 145.6B", "Megatron-LM 1008B", "BLOOM 176B"}


def test_tensor_parallel_links_are_what_the_one_far_layout_loses_by() -> None:
    (run,) = (run for run in DENSE if run.name in FAR)
    found = run.compare()
    assert found.theirs.loss(found.best)[0] == "link"
    assert found.theirs.layout.tensor > found.best.layout.tensor


def test_deepseek_s_layout_loses_by_the_network_which_it_spares_in_ways_that_are_not_counted() -> None:
    (run,) = (run for run in PUBLISHED_RUNS if run not in DENSE)
    found = run.compare()
    assert found.theirs.loss(found.best)[0] == "network"
    assert found.ratio == pytest.approx(1.56, abs=0.02)
    assert run.utilisation > found.utilisation
