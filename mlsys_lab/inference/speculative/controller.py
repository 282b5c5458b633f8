"""How many tokens to draft next, so that speculation pays or stops: from measured acceptance and measured times."""

from __future__ import annotations

import math

from mlsys_lab.inference.speculative.gain import expected_tokens
from mlsys_lab.validation import require_at_least_one

DECAY = 0.9
"""Weight of what was measured before, at each new measurement."""
PROBE_FRACTION = 0.02
"""Largest fraction of the time spent on drafts that tell whether speculation would pay again."""


class SpeculationController:
    """Number of draft tokens for the next step, 0 to `max_tokens`: that with the most tokens per second.

    A step without drafts takes `plain_s`, one with k drafts k · `draft_s` + `verify_s`, moving averages of what was
    measured; it yields `expected_tokens` at the acceptance measured (arXiv:2211.17192, theorem 3.8). While drafts do
    not pay, a single one is tried now and then.
    """

    def __init__(self, max_tokens: int) -> None:
        require_at_least_one(max_tokens=max_tokens)
        self.max_tokens = max_tokens
        self.plain_s, self.draft_s, self.verify_s = _Average(), _Average(), _Average()
        self._num_accepted, self._num_tried = 4.0, 6.0  # fades; a first rejection must not end it
        self._num_plain_steps, self._is_warm = 0, False

    @property
    def acceptance(self) -> float:
        """Probability that a draft token is accepted if those before it were."""
        return self._num_accepted / self._num_tried

    def num_tokens(self) -> int:
        """How many tokens to draft for the next step."""
        if self.plain_s.value is None:
            return 0
        if self.draft_s.value is None or self.verify_s.value is None:
            return 1
        plain_s, draft_s, verify_s = self.plain_s.value, self.draft_s.value, self.verify_s.value
        rates = [1 / plain_s]
        for k in range(1, self.max_tokens + 1):
            rates.append(expected_tokens(self.acceptance, k) / (k * draft_s + verify_s))
        best = max(range(len(rates)), key=rates.__getitem__)
        lost = (draft_s + verify_s) / plain_s - 1  # by a probe, in plain steps, if its draft is rejected
        return 1 if best == 0 and self._num_plain_steps >= math.ceil(max(lost, 0.2) / PROBE_FRACTION) else best

    def record(self, num_tokens: int, results: list[tuple[int, int]], draft_s: float, step_s: float) -> None:
        """Learn from a step: `num_tokens` wanted, (drafted, accepted) of each sequence, seconds to draft and to run."""
        if not num_tokens:
            self._num_plain_steps += 1
            self.plain_s.add(step_s)
            return
        self._num_plain_steps = 0
        if self._is_warm:  # the first drafts compute the prompt, and may compile
            self.draft_s.add(draft_s / num_tokens)
            self.verify_s.add(step_s)
        self._is_warm = True
        self._num_accepted = DECAY * self._num_accepted + sum(accepted for _, accepted in results)
        self._num_tried = DECAY * self._num_tried + sum(min(accepted + 1, drafted) for drafted, accepted in results)


class _Average:
    """Exponential moving average; None before the first value."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float) -> None:
        self.value = value if self.value is None else DECAY * self.value + (1 - DECAY) * value
