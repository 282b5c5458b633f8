"""Do right solutions lose points by bad luck? Each is judged again and again, with other inputs every time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mlsys_grader.proving.in_process import InProcess
from mlsys_grader.proving.proof import prove
from mlsys_grader.proving.trials import Trial
from mlsys_lab.checks.deciding.compare import record_shares
from mlsys_lab.checks.learner.spec import Check

LOSSES = 1e-3
"""Share of draws that may cost a right solution a point."""


@dataclass(frozen=True)
class Draws:
    """How a right solution fared with many draws of a check's inputs: `lost` has the seed and reason of each loss.

    `share` is the largest share of a tolerance that any array of floats used in a draw that was not lost: far from 1,
    no luck is needed, however few draws there was time for. None where the check compares no floats by `close`.
    """

    solution: str
    check: str
    tried: int
    lost: tuple[str, ...]
    share: float | None

    @property
    def holds(self) -> bool:
        """Whether no more draws than may be cost a point."""
        return len(self.lost) <= LOSSES * self.tried


def try_draws(
    checks: Iterable[Check], right: Iterable[Trial], number: int, *, seed: int, limit_s: float
) -> Iterator[Draws]:
    """Judge right solutions by each check with inputs of `number` seeds from `seed` on, in this process.

    A check that takes long is asked less often: no draw but the first begins once a solution and a check have taken
    `limit_s` of processor time.
    """
    solutions = list(right)
    for check in checks:
        for solution in solutions:
            end_s, tried, lost, used = _processor_s() + limit_s, 0, list[str](), list[float]()
            while tried < number and (not tried or _processor_s() < end_s):
                trial = replace(solution, seeds={check.name: seed + tried})
                with record_shares() as shares:
                    (proved,) = prove(InProcess([check]), [trial])
                if proved.holds:
                    used += shares
                else:
                    lost.append(f"seed {seed + tried}: {proved.reason}")
                tried += 1
            yield Draws(solution.name, check.name, tried, tuple(lost), max(used, default=None))


def _processor_s() -> float:
    """Processor time of this process and of those that it has waited for."""
    return sum(os.times()[:4])
