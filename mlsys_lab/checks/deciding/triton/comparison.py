"""How near lab 04's attention has to come."""

from __future__ import annotations

from mlsys_lab.checks.deciding.traced import agree
from mlsys_lab.checks.learner.spec import Arrays, Mismatch


def agree_nearly(got: Arrays, expected: Arrays) -> Mismatch | None:
    """None where attention is right to three times the usual tolerance and its launch does nothing wrong.

    A score of 150 in float32 is off by 1e-5, and its exponential by as large a part; scores as powers of two are
    rounded once more.
    """
    return agree(got, expected, scale=3.0)
