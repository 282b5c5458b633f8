"""Where submissions are judged: in this process with a pool of threads, or over a cluster.

An engine takes artifacts and gives verdicts. It writes nothing: records, gradebook and feedback are the business of
the one process that started it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mlsys_checks.trusted.artifact import Artifact
from mlsys_grader.judging.verdict import Verdict


@dataclass(frozen=True)
class Task:
    """One submission to be judged. `seeds` replays a verdict: the secret seed of each check, by its name."""

    student: str
    artifact: Artifact
    seeds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What came of a task: verdicts, or the error that kept the judge from forming them."""

    student: str
    verdicts: tuple[Verdict, ...] = ()
    error: str = ""


class Engine(Protocol):
    """What judges submissions, in any order: this machine, or a cluster."""

    def judge_all(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield one result per task, as they are ready."""
