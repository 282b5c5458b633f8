"""Answers with names of their own, one after the other: numbers, and words as the bytes of their letters.

A check's `expect` may say beside an answer what common mistakes give for it (`likely`); `agree` then tells which it is.
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
"""The branch of what is expected that holds, by an answer's name and a mistake in words, what this mistake gives."""


def likely(answer: str, mistakes: Mapping[str, float | int]) -> Arrays:
    """What common mistakes, in words, give for an answer: arrays to put beside what is expected."""
    return flatten({LIKELY: {answer: mistakes}})


def agree(got: Arrays, expected: Arrays, *, scale: float = 1.0) -> Mismatch | None:
    """The first answer that is missing or wrong, with the common mistake that gives it; None when all are right.

    Numbers are held against each other as by `compare.close`, bytes as texts; nothing more than the answers may come.
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
    """What a mistake gives in the form of the answer: a number of its type, or a whole number as a text."""
    return encode_text(value.item()) if want.dtype == np.uint8 else value.astype(want.dtype)
