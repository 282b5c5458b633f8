"""How a class did in a lab, from the records alone: what was hard, why points were lost, what took long."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.gradebook.record import Record
from mlsys_grader.judging.verdict import Verdict

NUMBER = re.compile(r"(?<![\w`.-])(?<!Task )[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w-])", re.IGNORECASE)
"""A number on its own: not part of a name, and not that of a task."""
PLACE = re.compile(r" \(cell \d+, line \d+\)")
BINS = 10
SLOWEST = 5


@dataclass(frozen=True)
class Failure:
    """A reason without its numbers, and how many students it cost the check's points."""

    reason: str
    students: int


@dataclass(frozen=True)
class SpeedSummary:
    """Performance points of a check: how many submissions were measured, how many not, the median of the measured."""

    points: float
    measured: int
    unmeasured: int
    median_earned: float | None


@dataclass(frozen=True)
class CheckSummary:
    """How a class did in one check. `failures` come from submissions that could be judged, the commonest first."""

    name: str
    title: str
    points: float
    passed: int
    tried: int
    failures: tuple[Failure, ...]
    performance: SpeedSummary | None = None

    @property
    def rate(self) -> float:
        """The part of the class that passed, from 0 to 1."""
        return self.passed / self.tried


@dataclass(frozen=True)
class Summary:
    """How a class did in one lab.

    `bins` counts marks in tenths of the points, the last one with full marks. `whole` are submissions that lost every
    point for one reason: no notebook, a file that cannot be read, code that does not load. `slowest` are students with
    the seconds that their code ran, `suspects` those whose timed code did what no honest code does: student, check,
    what it did.
    """

    lab: str
    title: str
    points: float
    students: int
    mean: float
    median: float
    bins: tuple[int, ...]
    full: int
    checks: tuple[CheckSummary, ...]
    whole: tuple[tuple[str, tuple[str, ...]], ...]
    slowest: tuple[tuple[str, float], ...]
    suspects: tuple[tuple[str, str, str], ...] = ()


def summarise(records: Sequence[Record], lab: GradedLab, *, names: bool = True) -> Summary:
    """Sum up the records of a lab, at least one of them.

    Without `names` students are numbered, in an order that tells nothing of who they are or how they did.
    """
    called = {record.student: record.student for record in records}
    if not names:
        # By the submissions' digests: the alphabet, or the marks, would give a class away that knows itself.
        order = sorted(records, key=lambda record: (record.digest, record.student))
        called = {record.student: f"student {number}" for number, record in enumerate(order, start=1)}
    marks = [record.earned for record in records]
    judged = [record for record in records if not _is_lost_whole(record)]
    whole: dict[str, list[str]] = {}
    for record in records:
        if _is_lost_whole(record):
            whole.setdefault(generalise_reason(record.verdicts[0]), []).append(called[record.student])
    times = sorted(((sum_call_s(record), called[record.student]) for record in judged), reverse=True)
    return Summary(
        lab=lab.name,
        title=lab.info.title,
        points=records[0].points,
        students=len(records),
        mean=sum(marks) / len(marks),
        median=median(marks),
        bins=_count_bins(records),
        full=sum(record.earned == record.points for record in records),
        checks=tuple(_summarise_check(name, records, judged) for name in _list_checks(records)),
        whole=tuple(
            (reason, tuple(sorted(who)))
            for reason, who in sorted(whole.items(), key=lambda each: (-len(each[1]), each[0]))
        ),
        slowest=tuple((who, time_s) for time_s, who in times[:SLOWEST]),
        suspects=tuple(
            (called[record.student], verdict.check, verdict.performance.suspect)
            for record in records
            for verdict in record.verdicts
            if verdict.performance is not None and verdict.performance.suspect
        ),
    )


def generalise_reason(verdict: Verdict) -> str:
    """The reason for lost points without its numbers, so that like failures count as one.

    >>> generalise_reason(Verdict("total", "sum", 3, 0, what="`y` has the wrong value", got="-1.5e3", expected="7"))
    '`y` has the wrong value: got …, expected …'
    """
    case = f": {verdict.case}" if verdict.hidden else ""  # all that is told of a hidden case; elsewhere it adds nothing
    return NUMBER.sub("…", PLACE.sub("", verdict.reason)) + case


def sum_call_s(record: Record) -> float:
    """Seconds that a submission's own code took over all checks, by the judge's clock."""
    return sum(verdict.call_s for verdict in record.verdicts)


def _is_lost_whole(record: Record) -> bool:
    return all(verdict.refused for verdict in record.verdicts)


def _list_checks(records: Sequence[Record]) -> list[str]:
    """Every check on record, in the lab's order."""
    return list(dict.fromkeys(verdict.check for record in records for verdict in record.verdicts))


def _count_bins(records: Sequence[Record]) -> tuple[int, ...]:
    counts = [0] * BINS
    for record in records:
        share = record.earned / record.points if record.points else 0.0
        counts[min(int(share * BINS + 1e-9), BINS - 1)] += 1
    return tuple(counts)


def _summarise_check(name: str, records: Sequence[Record], judged: Sequence[Record]) -> CheckSummary:
    every = [verdict for record in records for verdict in record.verdicts if verdict.check == name]
    lost = Counter(
        generalise_reason(verdict)
        for record in judged
        for verdict in record.verdicts
        if verdict.check == name and not verdict.passed
    )
    return CheckSummary(
        name=name,
        title=every[0].title,
        points=every[0].points,
        passed=sum(verdict.passed for verdict in every),
        tried=len(every),
        failures=tuple(Failure(reason, number) for reason, number in lost.most_common()),
        performance=_summarise_speed(every),
    )


def _summarise_speed(verdicts: Sequence[Verdict]) -> SpeedSummary | None:
    found = [verdict.performance for verdict in verdicts if verdict.performance is not None]
    if not found:
        return None
    earned = [verdict.earned for verdict in found if verdict.measured and verdict.earned is not None]
    return SpeedSummary(found[0].points, len(earned), len(found) - len(earned), median(earned) if earned else None)
