"""In which order a launch is judged, and what is said: values, what is wrong with memory, what is too much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mlsys_checks.sandboxed.findings import LAUNCHES
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.trees import flatten
from mlsys_checks.trusted.traced import agree, allow_at_most, describe_launch

LOADED = "line 3 `x = tl.load(x_ptr)`"


def launch(findings: Mapping[str, Any]) -> Arrays:
    return flatten({LAUNCHES: {"k": findings}})


def moves(way: str, count: int, lines: str, name: str = "x_ptr") -> Arrays:
    return launch({"moved": {name: {way: {"bytes": count, "lines": lines}}}})


def busiest(count: int) -> Arrays:
    return launch({"busiest": {"actor": "program", "number": 3, "bytes": count}})


GOOD: Arrays = {
    "y": np.array([1.0, 2.0], dtype=np.float32),
    **moves("reads", 100, LOADED),
    **moves("writes", 0, ""),
    **busiest(55),
    **launch({"widest": 16, "wrong": ""}),
}
VALUES: Arrays = {"y": np.array([1.0, 2.0], dtype=np.float32)}
MOST = VALUES | allow_at_most("k", reads={"x_ptr": 100}, writes={}, busiest=50, widest=16, programs=4)


def said(changes: Arrays, expected: Arrays = MOST) -> str:
    """All that is said, or "passed"."""
    mismatch = agree(GOOD | changes, expected)
    return "passed" if mismatch is None else " | ".join((mismatch.what, mismatch.got, mismatch.expected))


def test_what_is_right_and_within_its_allowance_passes() -> None:
    assert said({}) == "passed"
    assert said(moves("reads", 110, LOADED)) == "passed", "a tenth more is allowed"


def test_values_come_first_and_the_first_thing_wrong_with_memory_is_told_beside() -> None:
    wrong = launch({"wrong": "line 3: out of bounds\nline 4: a race"}) | moves("reads", 300, LOADED)
    told = said({"y": np.array([1.0, 3.0], dtype=np.float32), **wrong})
    assert told.startswith("`y` is wrong in 1 of 2 entries, worst at [1]. line 3: out of bounds | ")
    assert said(wrong) == (
        "the values are right, but not what it does to memory | line 3: out of bounds (and 1 more) | "
        "no access beyond an array's end, no load of what was never stored, no race"
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
            moves("reads", 200, LOADED),
            "`k` reads too much of `x_ptr` | 200 bytes, 2 times what it has to: line 3 `x = tl.load(x_ptr)` | "
            "100 bytes, or up to 1.1 times that",
        ),
        (
            moves("reads", 1, "line 3", "at"),
            "`k` has a parameter that the task does not name | at | x_ptr",
        ),
        (moves("reads", 111, LOADED), "`k` reads too much of `x_ptr` | 111 bytes, 1.11 times"),
        (
            moves("writes", 4, "line 9"),
            "`k` writes too much of `x_ptr` | 4 bytes: line 9 | nothing",
        ),
        (
            launch({"widest": 17}),
            "`k` works on a larger block than the task allows | 17 elements at once",
        ),
        (
            busiest(56),
            "`k` does not share its work among its 4 programs | 56 bytes moved by program 3 alone",
        ),
    ],
)
def test_too_much_is_told_with_its_number_and_line(changes: Arrays, message: str) -> None:
    assert said(changes).startswith(message)
    assert said(changes, VALUES) == "passed", "counts are looked at only where something is said of them"


def test_arrays_are_made_anew_but_for_those_whose_zeros_matter() -> None:
    arrays = {"x": np.array([0.0, 1.0], np.float32), "s": np.array([2.0], np.float32)}
    fresh, exact = (describe_launch("k", "32", len, "y", "2", zeros_matter=zeros)(arrays) for zeros in (False, True))
    assert "given" not in fresh
    infinite = describe_launch("k", "32", len, "y", "2")(arrays | {"s": np.array([np.inf], np.float32)})
    assert infinite.splitlines()[:2] == ['x = given["x"]', 's = given["s"]']
    assert exact.splitlines()[:2] == ['x = given["x"]', "s = np.random.default_rng(0).standard_normal(1, np.float32)"]
