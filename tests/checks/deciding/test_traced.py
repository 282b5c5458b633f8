"""In which order a launch is judged, and what is said: values, what is wrong with memory, what is too much."""

from __future__ import annotations

import numpy as np
import pytest

from mlsys_lab.checks.deciding.traced import agree, allowed
from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.kernels.trace.findings import as_text

GOOD: Arrays = {
    "y": np.array([1.0, 2.0], dtype=np.float32),
    "k reads x_ptr": np.array(100),
    "k reads x_ptr at": as_text("line 3 `x = tl.load(x_ptr)`"),
    "k writes x_ptr": np.array(0),
    "k writes x_ptr at": as_text(""),
    "k busiest program": np.array([3, 55]),
    "k widest": np.array(16),
    "k is wrong": as_text(""),
}
VALUES: Arrays = {"y": np.array([1.0, 2.0], dtype=np.float32)}
MOST = VALUES | allowed("k", reads={"x_ptr": 100}, writes={}, busiest=50, widest=16, programs=4)


def said(changes: Arrays, expected: Arrays = MOST) -> str:
    """All that is said, or "passed"."""
    mismatch = agree(GOOD | changes, expected)
    return "passed" if mismatch is None else " | ".join((mismatch.what, mismatch.got, mismatch.expected))


def test_what_is_right_and_within_its_allowance_passes() -> None:
    assert said({}) == "passed"
    assert said({"k reads x_ptr": np.array(110)}) == "passed", "a tenth more is allowed"


def test_values_come_first_and_the_first_thing_wrong_with_memory_is_told_beside() -> None:
    wrong = {"k is wrong": as_text("line 3: out of bounds\nline 4: a race"), "k reads x_ptr": np.array(300)}
    told = said({"y": np.array([1.0, 3.0], dtype=np.float32), **wrong})
    assert told.startswith("`y` is wrong in 1 of 2 entries, most at [1]. line 3: out of bounds | ")
    assert said(wrong) == (
        "the values are right, but not what it does to memory | line 3: out of bounds (and 1 more) | "
        "every access inside of its array, to what is written, in a fixed order"
    )


def test_nan_is_told_by_the_first_place_that_has_it() -> None:
    told = said({"y": np.array([1.0, np.nan], dtype=np.float32)})
    assert told == "`y` has 1 NaN in 2 entries, first at [1] | NaN at [1] | 2 at [1]"
    assert said({"y": np.float32(np.nan)}, {"y": np.float32(2)}) == "`y` is NaN | NaN | 2"
    both = {"y": np.array([1.0, np.nan], dtype=np.float32)}
    assert said(both, both).startswith("`y` has 1 NaN in 2 entries |"), "NaN never passes, an oracle's neither"
    assert said({"y": np.array([np.nan], dtype=np.float32)}).startswith("`y` has the wrong shape")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"k reads x_ptr": np.array(200)},
            "`k` reads too much of `x_ptr` | 200 bytes, 2 times what it has to: line 3 `x = tl.load(x_ptr)` | "
            "100 bytes, or up to 1.1 times that",
        ),
        (
            {"k reads at": np.array(1), "k reads at at": as_text("line 3")},
            "`k` has a parameter that the task does not name | at | x_ptr",
        ),
        ({"k reads x_ptr": np.array(111)}, "`k` reads too much of `x_ptr` | 111 bytes, 1.11 times"),
        (
            {"k writes x_ptr": np.array(4), "k writes x_ptr at": as_text("line 9")},
            "`k` writes too much of `x_ptr` | 4 bytes: line 9 | nothing",
        ),
        (
            {"k widest": np.array(17)},
            "`k` works on a larger block than the task allows | 17 elements at once",
        ),
        (
            {"k busiest program": np.array([3, 56])},
            "`k` does not share its work among its 4 programs | 56 bytes moved by program 3 alone",
        ),
    ],
)
def test_too_much_is_told_with_its_number_and_line(changes: Arrays, message: str) -> None:
    assert said(changes).startswith(message)
    assert said(changes, VALUES) == "passed", "counts are looked at only where something is said of them"
