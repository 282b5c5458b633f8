"""Estimate false fails and false passes: judge right solutions and mutants with many random inputs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mlsys_checks.sandboxed.spec import Check
from mlsys_checks.trusted.compare import record_tolerance_used
from mlsys_grader.proving.in_process import InProcess
from mlsys_grader.proving.proof import Proved, prove
from mlsys_grader.proving.trials import Trial

MAX_FALSE_FAIL_RATE = 1e-3
"""Fraction of draws that may cost a right solution a point."""
MAX_FALSE_PASS_RATE = 1e-2
"""Fraction of draws in which a check may pass a mutant that it has to fail."""
MUTANT_DRAWS = 100
"""Draws per mutant, enough to detect one pass in a hundred."""


@dataclass(frozen=True)
class Draws:
    """A right solution judged with many draws of a check's inputs: `lost` has the seed and reason of each loss.

    `tolerance_used` is the largest fraction of a tolerance that any array of floats used in a draw without loss: far
    below 1, a few draws suffice. None if the check compares no floats with `close`.
    """

    solution: str
    check: str
    tried: int
    lost: tuple[str, ...]
    tolerance_used: float | None

    @property
    def holds(self) -> bool:
        """Whether the false-fail rate is within its limit."""
        return len(self.lost) <= MAX_FALSE_FAIL_RATE * self.tried


@dataclass(frozen=True)
class MutantDraws:
    """A mutant judged with many draws of the inputs of a check that has to fail it; `passed` has the passing seeds."""

    mutant: str
    check: str
    tried: int
    passed: tuple[int, ...]

    @property
    def holds(self) -> bool:
        """Whether the false-pass rate is within its limit."""
        return len(self.passed) <= MAX_FALSE_PASS_RATE * self.tried


def try_draws(
    checks: Iterable[Check], right: Iterable[Trial], number: int, *, seed: int, limit_s: float
) -> Iterator[Draws]:
    """Judge right solutions by each check with inputs of `number` seeds from `seed` on, in this process.

    Slow checks get fewer draws: none but the first begins once a solution and a check have taken `limit_s` of CPU time.
    """
    solutions = list(right)
    for check in checks:
        for solution in solutions:
            tried, lost, used = 0, list[str](), list[float]()
            for drawn, proved, fractions in _judge_often(check, solution, number, seed, limit_s):
                tried += 1
                if proved.holds:
                    used += fractions
                else:
                    lost.append(f"seed {drawn}: {proved.reason}")
            yield Draws(solution.name, check.name, tried, tuple(lost), max(used, default=None))


def try_mutants(
    checks: Iterable[Check], mutants: Iterable[Trial], number: int, *, seed: int, limit_s: float
) -> Iterator[MutantDraws]:
    """Judge mutants by each check that has to fail them, as `try_draws` does, with at most `MUTANT_DRAWS` inputs."""
    tried = list(mutants)
    for check in checks:
        for mutant in (one for one in tried if check.name in one.fails):
            draws = list(_judge_often(check, mutant, min(number, MUTANT_DRAWS), seed, limit_s))
            passed = tuple(drawn for drawn, proved, _ in draws if not proved.failed)
            yield MutantDraws(mutant.name, check.name, len(draws), passed)


def _judge_often(
    check: Check, trial: Trial, number: int, seed: int, limit_s: float
) -> Iterator[tuple[int, Proved, list[float]]]:
    """Seed, outcome and used fractions of tolerances for `number` draws, or as many as begin within the limit."""
    end_s = _processor_s() + limit_s
    for drawn in range(seed, seed + number):
        if drawn > seed and _processor_s() >= end_s:
            return
        with record_tolerance_used() as fractions:
            (proved,) = prove(InProcess([check]), [replace(trial, seeds={check.name: drawn})])
        yield drawn, proved, fractions


def _processor_s() -> float:
    """CPU time of this process and of its finished children."""
    return sum(os.times()[:4])
