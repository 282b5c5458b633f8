"""Comparison of what several ranks give back, rank by rank."""

from __future__ import annotations

from collections.abc import Callable

from mlsys_lab.checks.deciding.compare import close
from mlsys_lab.checks.learner.ranks import name_rank, split_ranks
from mlsys_lab.checks.learner.spec import Arrays, Mismatch


def compare_ranks(
    got: Arrays, expected: Arrays, compare: Callable[[Arrays, Arrays], Mismatch | None] = close
) -> Mismatch | None:
    """Compare each rank's arrays with those expected of it; the first `Mismatch` names the rank. Logs are left out."""
    parts = split_ranks(got), split_ranks(expected)
    for rank, (given, wanted) in enumerate(zip(*parts, strict=True)):
        if (mismatch := compare(given, wanted)) is not None:
            return name_rank(mismatch, rank)
    return None
