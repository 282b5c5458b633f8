"""Servers at full load: tokens freed per step, and prefill servers per decode server.

Every sequence has a prompt and an answer of the same lengths, and as soon as one ends another takes its place.
"""

from __future__ import annotations

from mlsys_lab.validation import require_at_least_one, require_non_negative, require_positive


def freed_tokens(batch: float, prompt: float, answer: float) -> float:
    """Cached tokens freed per step: of `batch` sequences one in `answer` finishes, and frees its prompt too.

    As many come in, of new prompts and of the step itself.

    >>> freed_tokens(32, prompt=8192, answer=4096)
    96.0
    """
    require_non_negative(prompt=prompt)
    require_at_least_one(batch=batch, answer=answer)
    return batch * (prompt + answer) / answer


def prefill_servers(prefill_s: float, step_s: float, batch: float, answer: float) -> float:
    """Prefill servers per decode server at which neither waits for the other.

    A prompt takes `prefill_s` on the former; the latter write `batch` answers of `answer` tokens, `step_s` a token.
    """
    require_positive(prefill_s=prefill_s, step_s=step_s)
    require_at_least_one(batch=batch, answer=answer)
    return prefill_s * batch / (step_s * answer)
