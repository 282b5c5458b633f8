"""Sizes of a case that its seed draws."""

from __future__ import annotations

from collections import Counter

import numpy as np

from mlsys_checks.sandboxed.spec import Case, Range, draw_cases


def test_a_range_draws_all_of_its_numbers_and_its_edges_most_often() -> None:
    rng = np.random.default_rng(0)
    drawn = Counter(Range(3, 40, (16,)).draw(rng) for _ in range(3000))
    assert set(drawn) == set(range(3, 41))
    assert {size for size, _ in drawn.most_common(3)} == {3, 16, 40}


def test_a_case_without_ranges_takes_nothing_from_the_generator() -> None:
    rng, case = np.random.default_rng(0), Case("fixed", {"n": 7})
    assert case.draw(rng) is case
    assert rng.random() == np.random.default_rng(0).random()


def test_a_case_has_a_number_for_each_of_its_ranges() -> None:
    case = Case("drawn", {"n": Range(1, 9), "kind": "ring"}, hidden=True)
    drawn = [case.draw(np.random.default_rng(seed)) for seed in range(50)]
    assert {one.params["n"] for one in drawn} == set(range(1, 10))
    assert {(one.name, one.params["kind"], one.hidden) for one in drawn} == {("drawn", "ring", True)}


def test_hidden_cases_are_drawn_from_the_larger_ranges() -> None:
    small, large = Range(1, 9), Range(90, 99)
    cases = draw_cases({"n": small, "m": small}, public=2, hidden=2, n=large)
    assert [(case.params["n"], case.params["m"], case.hidden) for case in cases] == [
        *[(small, small, False)] * 2,
        *[(large, small, True)] * 2,
    ]
    assert len({case.name for case in cases}) == 4
