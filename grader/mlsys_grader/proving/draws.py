"""Do right solutions lose points by bad luck, do mutants pass by good luck? Each is judged with many inputs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mlsys_checks.sandboxed.spec import Check
from mlsys_checks.trusted.compare import record_shares
from mlsys_grader.proving.in_process import InProcess
from mlsys_grader.proving.proof import Proved, prove
from mlsys_grader.proving.trials import Trial

LOSSES = 1e-3
"""Share of draws that may cost a right solution a point."""
PASSES = 1e-2
"""Share of draws that a check may let pass of a mutant that it has to fail."""
MUTANT_DRAWS = 100
"""Draws of a mutant, enough to see whether it passes one in a hundred."""


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


@dataclass(frozen=True)
class MutantDraws:
    """How a mutant fared with many draws of the inputs of a check that has to fail it: `passed` has the seeds that did
    not.
    """

    mutant: str
    check: str
    tried: int
    passed: tuple[int, ...]

    @property
    def holds(self) -> bool:
        """Whether no more draws than may be let it pass."""
        return len(self.passed) <= PASSES * self.tried


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
            tried, lost, used = 0, list[str](), list[float]()
            for drawn, proved, shares in _judge_often(check, solution, number, seed, limit_s):
                tried += 1
                if proved.holds:
                    used += shares
                else:
                    lost.append(f"seed {drawn}: {proved.reason}")
            yield Draws(solution.name, check.name, tried, tuple(lost), max(used, default=None))


def try_mutants(
    checks: Iterable[Check], mutants: Iterable[Trial], number: int, *, seed: int, limit_s: float
) -> Iterator[MutantDraws]:
    """Judge mutants by each check that has to fail them, as `try_draws` does; `MUTANT_DRAWS` inputs are the most."""
    tried = list(mutants)
    for check in checks:
        for mutant in (one for one in tried if check.name in one.fails):
            draws = list(_judge_often(check, mutant, min(number, MUTANT_DRAWS), seed, limit_s))
            passed = tuple(drawn for drawn, proved, _ in draws if not proved.failed)
            yield MutantDraws(mutant.name, check.name, len(draws), passed)


def _judge_often(
    check: Check, trial: Trial, number: int, seed: int, limit_s: float
) -> Iterator[tuple[int, Proved, list[float]]]:
    """Seed, outcome and shares of tolerances in use, of `number` draws or as many as begin within the limit."""
    end_s = _processor_s() + limit_s
    for drawn in range(seed, seed + number):
        if drawn > seed and _processor_s() >= end_s:
            return
        with record_shares() as shares:
            (proved,) = prove(InProcess([check]), [replace(trial, seeds={check.name: drawn})])
        yield drawn, proved, shares


def _processor_s() -> float:
    """Processor time of this process and of those that it has waited for."""
    return sum(os.times()[:4])
