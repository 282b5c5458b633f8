"""Servers at full load: what leaves the cache in a step, and how many servers for prompts keep others busy.

Every sequence has a prompt and an answer of the same lengths, and as soon as one ends another takes its place.
"""

from __future__ import annotations

from mlsys_lab.validation import require_at_least_one, require_non_negative, require_positive


def freed_tokens(batch: float, prompt: float, answer: float) -> float:
    """Cached tokens that leave with each step: of `batch` sequences one in `answer` ends, with its prompt.

    As many come in, of new prompts and of the step itself.

    >>> freed_tokens(32, prompt=8192, answer=4096)
    96.0
    """
    require_non_negative(prompt=prompt)
    require_at_least_one(batch=batch, answer=answer)
    return batch * (prompt + answer) / answer


def prefill_servers(prefill_s: float, step_s: float, batch: float, answer: float) -> float:
    """Servers that read prompts for each server that writes answers, so that neither waits for the other.

    A prompt takes `prefill_s` on the former; the latter write `batch` answers of `answer` tokens, `step_s` a token.
    """
    require_positive(prefill_s=prefill_s, step_s=step_s)
    require_at_least_one(batch=batch, answer=answer)
    return prefill_s * batch / (step_s * answer)
