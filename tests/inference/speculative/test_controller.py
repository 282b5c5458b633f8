"""The controller drafts as much as pays, stops where nothing does, and finds out when that changes."""

from __future__ import annotations

import random

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.inference.speculative import SpeculationController, best_num_speculative_tokens


def run(controller, steps, *, acceptance, draft_s, verify_s=1.0, seed=0):
    """Seconds per token of simulated steps, a plain one taking a second, and how many drafts each had."""
    random_, seconds, tokens, counts = random.Random(seed), 0.0, 0, []
    for _ in range(steps):
        k = controller.num_tokens()
        accepted = next((i for i in range(k) if random_.random() >= acceptance), k)
        step_s = verify_s if k else 1.0
        controller.record(k, [(k, accepted)], k * draft_s, step_s)
        seconds, tokens = seconds + k * draft_s + step_s, tokens + accepted + 1
        counts.append(k)
    return seconds / tokens, counts


@pytest.mark.parametrize(("acceptance", "draft_s"), [(0.9, 0.05), (0.6, 0.1), (0.3, 0.1)])
def test_it_finds_the_best_number(acceptance, draft_s):
    _, counts = run(SpeculationController(6), 600, acceptance=acceptance, draft_s=draft_s)
    best = best_num_speculative_tokens(acceptance, draft_s, limit=6)
    assert abs(sum(counts[100:]) / 500 - best) <= 1


@pytest.mark.parametrize(("acceptance", "draft_s", "verify_s"), [(0.0, 0.1, 1.1), (0.2, 1.0, 1.3), (0.5, 5.0, 2.0)])
def test_drafts_that_do_not_pay_cost_less_than_a_twentieth(acceptance, draft_s, verify_s):
    seconds, counts = run(SpeculationController(4), 2000, acceptance=acceptance, draft_s=draft_s, verify_s=verify_s)
    assert seconds < 1.05
    assert 1 in counts[200:], "it is still tried"


def test_it_notices_that_drafts_pay_again():
    controller = SpeculationController(4)
    run(controller, 300, acceptance=0.0, draft_s=0.1)
    seconds, _ = run(controller, 600, acceptance=0.9, draft_s=0.1)
    assert seconds < 0.6


def test_bad_input():
    with pytest.raises(InputError, match="max_tokens"):
        SpeculationController(0)
