"""Named answers: numbers, and words as the bytes of their letters.

A check's `expect` may add what common mistakes give for an answer (`likely`); `agree` then names the mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays, Mismatch
from mlsys_checks.sandboxed.trees import Tree, flatten, nest
from mlsys_checks.sandboxed.values import decode_text, encode_text
from mlsys_checks.trusted.compare import close

LIKELY = "likely"
"""Branch of the expected values: by answer and mistake, what the mistake gives."""


def likely(answer: str, mistakes: Mapping[str, float | int]) -> Arrays:
    """Values that common mistakes give for an answer, as arrays to add to the expected ones."""
    return flatten({LIKELY: {answer: mistakes}})


def agree(got: Arrays, expected: Arrays, *, scale: float = 1.0) -> Mismatch | None:
    """The first missing or wrong answer, with the common mistake that gives it; None if all are right.

    Numbers are compared by `compare.close`, bytes as text; extra answers are rejected.
    """
    answers = nest(expected)
    mistakes: Tree = answers.pop(LIKELY, {})
    for name, want in answers.items():
        mismatch = close({name: got[name]} if name in got else got, {name: want}, scale=scale)
        if mismatch is None:
            continue
        if name in got and want.dtype == got[name].dtype == np.uint8:
            mismatch = Mismatch(f"`{name}` is wrong", decode_text(got[name]), decode_text(want))
        known = [
            mistake
            for mistake, value in mistakes.get(name, {}).items()
            if name in got and close({name: got[name]}, {name: _as_answer(value, want)}, scale=scale) is None
        ]
        what = f"{mismatch.what}: {', or '.join(known)}" if known else mismatch.what
        return replace(mismatch, what=what)
    return close(got, answers, scale=scale)


def _as_answer(value: np.ndarray, want: np.ndarray) -> np.ndarray:
    """A mistake's value in the form of the answer: a number of its type, or an integer as text."""
    return encode_text(value.item()) if want.dtype == np.uint8 else value.astype(want.dtype)
