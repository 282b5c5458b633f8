"""What several ranks give back, compared rank by rank."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.ranks import join_ranks
from mlsys_checks.trusted.ranks import compare_ranks

SHARES = np.array([0.1, 0.2, -0.3])


def test_a_sum_that_is_zero_but_for_rounding_may_be_taken_in_any_order() -> None:
    there, back = ((a + b) + c for a, b, c in (SHARES, SHARES[::-1]))
    assert there != back and abs(there) < 1e-15
    got, expected = (join_ranks([{"sum": np.array([total])}]) for total in (there, back))
    assert compare_ranks(got, expected) is None


def test_the_first_rank_that_is_wrong_is_named() -> None:
    expected = join_ranks([{"sum": SHARES}] * 3)
    got = join_ranks([{"sum": SHARES}, {"sum": SHARES + 1e-3}, {"sum": SHARES + 1}])
    mismatch = compare_ranks(got, expected)
    assert mismatch is not None and mismatch.what.startswith("on rank 1: `sum` is wrong")
