"""How near lab 04's attention has to come."""

from __future__ import annotations

from mlsys_checks.sandboxed.spec import Arrays, Mismatch
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.traced import agree


def agree_nearly(got: Arrays, expected: Arrays) -> Mismatch | None:
    """None where attention is right to three times the usual tolerance and its launch does nothing wrong.

    A score of 150 in float32 is off by 1e-5, and its exponential by as large a part; scores as powers of two are
    rounded once more. A log-sum-exp, `lse`, has no exponential behind its scores: the usual tolerance holds for it, of
    which right answers have used a third, and ln 2 as 0.6931 takes nearly twice as much.
    """
    lse = {name: array for name, array in expected.items() if name == "lse"}
    return agree(got, expected, scale=3.0) or close({name: got[name] for name in lse}, lse)
