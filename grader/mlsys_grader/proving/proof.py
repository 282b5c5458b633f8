"""Prove a lab's checks: what is right passes all, what is wrong is caught where it should.

The engine is whoever judges: `mlsys-grader prove` asks the judge itself, in the sandbox; the course's own tests, which
have hundreds of variants to go through, ask one that calls the variants' code in their own process.
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
    """What came of a trial: the verdicts of the checks that were asked, or the error that kept the engine from them."""

    trial: Trial
    verdicts: tuple[Verdict, ...] = ()
    error: str = ""

    @property
    def failed(self) -> tuple[str, ...]:
        """The checks that were not passed."""
        return tuple(verdict.check for verdict in self.verdicts if not verdict.passed)

    @property
    def false_passes(self) -> tuple[str, ...]:
        """The checks that should have failed it and did not: they passed it, or were not asked."""
        return () if self.error else tuple(sorted(self.trial.fails - {*self.failed}))

    @property
    def false_fails(self) -> tuple[str, ...]:
        """The checks that failed it although it is right."""
        return self.failed if self.trial.right else ()

    @property
    def misread(self) -> tuple[str, ...]:
        """The checks that took a mistake for an unwritten task, or an unwritten task for a mistake."""
        named = [verdict for verdict in self.verdicts if verdict.check in self.trial.fails and not verdict.passed]
        wanted = self.trial.unfinished
        return tuple(verdict.check for verdict in named if wanted is not None and verdict.unfinished != wanted)

    @property
    def reason(self) -> str:
        """Why the first of the failed checks was not passed, in one line; "" where none failed."""
        return next((verdict.reason for verdict in self.verdicts if not verdict.passed), "")

    @property
    def time_s(self) -> float:
        """Seconds that all checks took together."""
        return sum(verdict.time_s for verdict in self.verdicts)

    @property
    def holds(self) -> bool:
        """Whether everything came out as it should."""
        return not (self.false_passes or self.false_fails or self.misread or self.error)


def prove(engine: Engine, tried: Sequence[Trial]) -> Iterator[Proved]:
    """Have every trial judged; outcomes come as they are ready."""
    tasks = (Task(str(number), trial.artifact, trial.seeds) for number, trial in enumerate(tried))
    for result in engine.judge_all(tasks):
        yield read_result(tried[int(result.student)], result)


def read_result(trial: Trial, result: Result) -> Proved:
    """What an engine's answer makes of a trial; a fault of a check's own code is an error, and decides nothing."""
    faults = [verdict.fault for verdict in result.verdicts if verdict.fault]
    if result.error or faults:
        return Proved(trial, error=result.error or faults[0])
    return Proved(trial, result.verdicts)


def count_caught(lab: GradedLab, proved: Sequence[Proved]) -> dict[str, int]:
    """For every check the number of mutants that it failed."""
    counts = Counter(name for one in proved if one.trial.kind == "mutant" for name in one.failed)
    return {check.name: counts[check.name] for check in lab.checks.checks}
