"""Prove a lab's checks through the judge itself: what is right passes all, what is wrong is caught where it should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.engines import Engine, Result, Task
from mlsys_grader.proving.variants import VariantsOf, blank
from mlsys_lab.checks.deciding.artifact import Artifact


@dataclass(frozen=True)
class Trial:
    """One variant to be judged: `fails` are the checks that must not pass; all others must, where `right` says so.

    A wrong variant may fail more checks than it names: one mistake can show in many places.
    """

    kind: str
    name: str
    artifact: Artifact
    fails: frozenset[str]

    @property
    def right(self) -> bool:
        """Whether it has to keep all points."""
        return not self.fails


@dataclass(frozen=True)
class Proved:
    """What became of a variant: the checks that failed it, those that wrongly passed or failed it, and the time."""

    trial: Trial
    failed: tuple[str, ...]
    false_passes: tuple[str, ...]
    false_fails: tuple[str, ...]
    time_s: float
    reason: str = ""
    error: str = ""

    @property
    def holds(self) -> bool:
        """Whether the judge did what it should."""
        return not (self.false_passes or self.false_fails or self.error)


def trials(lab: GradedLab, variants: VariantsOf) -> list[Trial]:
    """Reference, blank, alternatives, mutants and mishaps, in this order."""
    every = frozenset(check.name for check in lab.checks.checks)
    found = [Trial("reference", "the course's solutions", Artifact.parse("reference", variants.reference), frozenset())]
    found.append(Trial("blank", "the released notebook", blank(lab.info), every))
    for path in variants.alternatives:
        found.append(
            Trial("alternative", path.stem, Artifact.parse(path.stem, variants.with_definitions(path)), frozenset())
        )
    for kind, wrong in (("mutant", variants.mutants), ("mishap", variants.mishaps)):
        for variant in wrong:
            artifact = Artifact.parse(kind, variants.substituted(variant))
            found.append(Trial(kind, variant.name, artifact, frozenset(variant.fails)))
    return found


def prove(engine: Engine, tried: Sequence[Trial]) -> Iterator[Proved]:
    """Judge every variant; outcomes come as they are ready."""
    tasks = (Task(str(number), trial.artifact) for number, trial in enumerate(tried))
    for result in engine.judge_all(tasks):
        yield outcome(tried[int(result.student)], result)


def outcome(trial: Trial, result: Result) -> Proved:
    """Compare what the judge said of a variant with what it should say."""
    faults = [verdict.fault for verdict in result.verdicts if verdict.fault]
    if result.error or faults:
        return Proved(trial, (), (), (), 0.0, error=result.error or faults[0])
    failed = tuple(verdict.check for verdict in result.verdicts if not verdict.passed)
    passed = tuple(verdict.check for verdict in result.verdicts if verdict.passed and verdict.check in trial.fails)
    reason = next((verdict.reason for verdict in result.verdicts if not verdict.passed), "")
    time_s = sum(verdict.time_s for verdict in result.verdicts)
    return Proved(trial, failed, passed, failed if trial.right else (), time_s, reason)


def caught(lab: GradedLab, proved: Sequence[Proved]) -> dict[str, int]:
    """For every check the number of mutants that it failed."""
    counts = Counter(name for one in proved if one.trial.kind == "mutant" for name in one.failed)
    return {check.name: counts[check.name] for check in lab.checks.checks}
