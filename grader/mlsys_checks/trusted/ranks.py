"""Comparison of what several ranks give back, rank by rank."""

from __future__ import annotations

from collections.abc import Callable

from mlsys_checks.sandboxed.ranks import name_rank, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Mismatch
from mlsys_checks.trusted.compare import close

LEAST = 0.1
"""What an array's entries are taken to measure at least: those that ranks add up have two decimals, most are larger."""


def close_sums(got: Arrays, expected: Arrays) -> Mismatch | None:
    """As `close`, for sums over ranks: one of a few numbers may be 0 but for rounding, which depends on their order."""
    return close(got, expected, least=dict.fromkeys(expected, LEAST))


def compare_ranks(
    got: Arrays, expected: Arrays, compare: Callable[[Arrays, Arrays], Mismatch | None] = close_sums
) -> Mismatch | None:
    """Compare each rank's arrays with those expected of it; the first `Mismatch` names the rank. Logs are left out."""
    parts = split_ranks(got), split_ranks(expected)
    for rank, (given, wanted) in enumerate(zip(*parts, strict=True)):
        if (mismatch := compare(given, wanted)) is not None:
            return name_rank(mismatch, rank)
    return None
