"""Answers by name: the first wrong one is told, words as words, and a common mistake by what it is."""

from __future__ import annotations

import numpy as np
import pytest

from mlsys_checks.sandboxed.spec import Arrays, Mismatch
from mlsys_checks.trusted.answers import agree, likely


def word(said: str) -> np.ndarray:
    return np.frombuffer(said.encode(), np.uint8).copy()


RIGHT: Arrays = {"bytes": np.array(12), "share": np.array(0.25), "limit": word("memory")}
MISTAKES = likely("bytes", {"these are elements": 6, "a row too many": 14}) | likely("share", {"upside down": 4})


def test_right_answers_agree_whatever_mistakes_are_known() -> None:
    assert agree(RIGHT, RIGHT | MISTAKES) is None


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"bytes": np.array(14)}, Mismatch("`bytes` has the wrong value: a row too many", "14", "12")),
        ({"bytes": np.array(13)}, Mismatch("`bytes` has the wrong value", "13", "12")),
        ({"share": np.array(4.0)}, Mismatch("`share` has the wrong value: upside down", "4.", "0.25")),
        ({"limit": word("compute")}, Mismatch("`limit` is wrong", "compute", "memory")),
        (
            {"bytes": np.array(6), "limit": word("a")},
            Mismatch("`bytes` has the wrong value: these are elements", "6", "12"),
        ),
        ({"more": np.array(1)}, Mismatch("more came back than was asked for", "more", "bytes, share, limit")),
    ],
)
def test_the_first_wrong_answer_is_told(wrong: Arrays, told: Mismatch) -> None:
    assert agree(RIGHT | wrong, RIGHT | MISTAKES) == told


def test_a_mistake_is_told_of_a_count_that_crosses_as_a_text() -> None:
    right = {"FLOPs": word(str(2**70))}
    known = right | likely("FLOPs", {"a multiply-add is two": 2**69})
    assert agree(right, known) is None
    told = Mismatch("`FLOPs` is wrong: a multiply-add is two", str(2**69), str(2**70))
    assert agree({"FLOPs": word(str(2**69))}, known) == told


def test_an_answer_that_is_missing_is_named() -> None:
    assert agree({}, RIGHT | MISTAKES) == Mismatch("`bytes` is missing", "nothing", "bytes")


def test_the_tolerance_can_be_widened() -> None:
    near = RIGHT | {"share": np.array(0.25 * (1 + 1e-6))}
    assert agree(near, RIGHT) is not None
    assert agree(near, RIGHT, scale=1e4) is None
