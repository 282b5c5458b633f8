"""Prove a lab's checks: right code passes all of them, and each mistake fails the right ones.

The engine is a parameter: `mlsys-grader prove` uses the judge, in the sandbox; the course's tests, which have hundreds
of variants, run the variants' code in their own process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.engines import Engine, Result, Task
from mlsys_grader.judging.verdict import Verdict
from mlsys_grader.proving.trials import Trial


@dataclass(frozen=True)
class Proved:
    """Result of a trial: the verdicts of the checks that ran, or the engine's error."""

    trial: Trial
    verdicts: tuple[Verdict, ...] = ()
    error: str = ""

    @property
    def failed(self) -> tuple[str, ...]:
        """Checks that failed."""
        return tuple(verdict.check for verdict in self.verdicts if not verdict.passed)

    @property
    def false_passes(self) -> tuple[str, ...]:
        """Checks that should have failed and did not: they passed, or did not run."""
        return () if self.error else tuple(sorted(self.trial.fails - {*self.failed}))

    @property
    def false_fails(self) -> tuple[str, ...]:
        """Checks that failed right code."""
        return self.failed if self.trial.right else ()

    @property
    def misread(self) -> tuple[str, ...]:
        """Checks that took a mistake for an unwritten task, or the reverse."""
        named = [verdict for verdict in self.verdicts if verdict.check in self.trial.fails and not verdict.passed]
        wanted = self.trial.unfinished
        return tuple(verdict.check for verdict in named if wanted is not None and verdict.unfinished != wanted)

    @property
    def reason(self) -> str:
        """Why the first failed check failed, in one line; "" if none failed."""
        return next((verdict.reason for verdict in self.verdicts if not verdict.passed), "")

    @property
    def time_s(self) -> float:
        """Seconds of all checks together."""
        return sum(verdict.time_s for verdict in self.verdicts)

    @property
    def holds(self) -> bool:
        """Whether every check came out as expected."""
        return not (self.false_passes or self.false_fails or self.misread or self.error)


def prove(engine: Engine, tried: Sequence[Trial]) -> Iterator[Proved]:
    """Judge every trial; yield results as they complete."""
    tasks = (Task(str(number), trial.artifact, trial.seeds) for number, trial in enumerate(tried))
    for result in engine.judge_all(tasks):
        yield read_result(tried[int(result.student)], result)


def read_result(trial: Trial, result: Result) -> Proved:
    """Combine a trial and its result; a fault of a check's own code is an error and decides nothing."""
    faults = [verdict.fault for verdict in result.verdicts if verdict.fault]
    if result.error or faults:
        return Proved(trial, error=result.error or faults[0])
    return Proved(trial, result.verdicts)


def count_caught(lab: GradedLab, proved: Sequence[Proved]) -> dict[str, int]:
    """Number of mutants that each check failed."""
    counts = Counter(name for one in proved if one.trial.kind == "mutant" for name in one.failed)
    return {check.name: counts[check.name] for check in lab.checks.checks}
