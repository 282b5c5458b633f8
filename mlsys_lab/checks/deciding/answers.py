"""Answers with names of their own, one after the other: numbers, and words as the bytes of their letters.

A check's `expect` may say beside an answer what common mistakes give for it (`likely`); `agree` then tells which it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mlsys_lab.checks.deciding.compare import close
from mlsys_lab.checks.learner.spec import Arrays, Mismatch

LIKELY = "likely: "
"""Names of answers to which a common mistake comes begin so: LIKELY, the answer's name, a bar, the mistake in words."""


def likely(answer: str, mistakes: Mapping[str, float | int]) -> Arrays:
    """What common mistakes, in words, give for an answer."""
    return {f"{LIKELY}{answer}|{what}": np.array(value) for what, value in mistakes.items()}


def agree(got: Arrays, expected: Arrays, *, scale: float = 1.0) -> Mismatch | None:
    """As `close`, one answer after the other; bytes are text; a wrong number is held against common mistakes."""
    answers = {name: want for name, want in expected.items() if not name.startswith(LIKELY)}
    for name, want in answers.items():
        mismatch = close({name: got[name]} if name in got else got, {name: want}, scale=scale)
        if mismatch is None:
            continue
        if name in got and want.dtype == got[name].dtype == np.uint8:
            said, meant = (letters.tobytes().decode(errors="replace") for letters in (got[name], want))
            return Mismatch(f"`{name}` is wrong", said, meant)
        known = [
            label.partition("|")[2]
            for label, value in expected.items()
            if label.startswith(f"{LIKELY}{name}|")
            and name in got
            and close({name: got[name]}, {name: value.astype(want.dtype)}, scale=scale) is None
        ]
        what = f"{mismatch.what}: {known[0]}" if known else mismatch.what
        return Mismatch(what, mismatch.got, mismatch.expected)
    return close(got, answers, scale=scale)
