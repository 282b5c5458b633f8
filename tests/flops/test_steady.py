"""Servers at full load, against a count of what happens step by step."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.flops.steady import freed_tokens, prefill_servers


@pytest.mark.parametrize(("batch", "prompt", "answer"), [(4, 10, 8), (6, 0, 3), (8, 5, 8)])
def test_tokens_that_leave_with_a_step(batch, prompt, answer):
    """Sequences that began evenly apart, over as many steps as an answer has tokens: all of them end once."""
    left = sum(prompt + answer for step in range(answer) for one in range(batch) if (step + one) % answer == 0)
    assert freed_tokens(batch, prompt, answer) == left / answer


def test_servers_that_keep_each_other_busy():
    ratio = prefill_servers(prefill_s=0.5, step_s=0.01, batch=20, answer=100)
    prompts_a_second, answers_a_second = ratio / 0.5, 20 / (100 * 0.01)
    assert prompts_a_second == answers_a_second


def test_bad_input():
    with pytest.raises(InputError, match="answer must be at least 1: got 0"):
        freed_tokens(1, 5, 0)
    with pytest.raises(InputError, match="step_s must be positive: got 0"):
        prefill_servers(1, 0, 1, 1)
