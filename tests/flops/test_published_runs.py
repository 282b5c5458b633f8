"""Published layouts are the planner's best or near it, or it is known by how much not, and why."""

from __future__ import annotations

from functools import cache

import pytest

from mlsys_lab.flops.published_runs import PUBLISHED_RUNS, Comparison, PublishedRun

BY_NAME = {run.name: run for run in PUBLISHED_RUNS}
LLAMA = [run for run in PUBLISHED_RUNS if run.name.startswith("Llama")]
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
