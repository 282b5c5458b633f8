"""Engines: judge submissions on this machine with a thread pool, or on a cluster.

An engine turns artifacts into verdicts and writes nothing: records, gradebook and feedback belong to the process that
started it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mlsys_checks.trusted.artifact import Artifact
from mlsys_grader.judging.verdict import Verdict


@dataclass(frozen=True)
class Task:
    """One submission to judge. `seeds` replays recorded secret seeds by check name."""

    student: str
    artifact: Artifact
    seeds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """The verdicts on a task, or the error that prevented them."""

    student: str
    verdicts: tuple[Verdict, ...] = ()
    error: str = ""


class Engine(Protocol):
    """Judges submissions in any order."""

    def judge_all(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield one result per task, as they complete."""
