"""Compare the answers of several ranks, rank by rank."""

from __future__ import annotations

from collections.abc import Callable

from mlsys_checks.sandboxed.ranks import name_rank, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Mismatch
from mlsys_checks.trusted.compare import close

MIN_SIZE = 0.1
"""Assumed minimum size of entries: summands have two decimals, and most are larger."""


def close_sums(got: Arrays, expected: Arrays) -> Mismatch | None:
    """`close` for sums over ranks: a sum of few numbers can be 0 up to rounding, which depends on their order."""
    return close(got, expected, min_size=dict.fromkeys(expected, MIN_SIZE))


def compare_ranks(
    got: Arrays, expected: Arrays, compare: Callable[[Arrays, Arrays], Mismatch | None] = close_sums
) -> Mismatch | None:
    """Compare each rank's arrays with the expected ones; the first `Mismatch` names the rank. Logs are ignored."""
    parts = split_ranks(got), split_ranks(expected)
    for rank, (given, wanted) in enumerate(zip(*parts, strict=True)):
        if (mismatch := compare(given, wanted)) is not None:
            return name_rank(mismatch, rank)
    return None
