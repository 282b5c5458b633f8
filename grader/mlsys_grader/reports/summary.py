"""Class summary of a lab from its records: hard checks, reasons for lost points, slow submissions."""

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
"""A number on its own: not part of a name, nor a task's."""
PLACE = re.compile(r" \(cell \d+, line \d+\)")
BINS = 10
SLOWEST = 5


@dataclass(frozen=True)
class Failure:
    """A reason without its numbers, and how many students it cost points."""

    reason: str
    students: int


@dataclass(frozen=True)
class SpeedSummary:
    """Performance points of a check: submissions measured and not, and the median of the measured."""

    points: float
    measured: int
    unmeasured: int
    median_earned: float | None


@dataclass(frozen=True)
class CheckSummary:
    """Results of a class in one check. `failures` counts submissions that could be judged, most frequent first."""

    name: str
    title: str
    points: float
    passed: int
    tried: int
    failures: tuple[Failure, ...]
    performance: SpeedSummary | None = None

    @property
    def rate(self) -> float:
        """Fraction of the class that passed."""
        return self.passed / self.tried


@dataclass(frozen=True)
class Summary:
    """Results of a class in one lab.

    `bins` counts marks by tenths of the points; full marks fall into the last. `failed_outright` lists submissions that
    lost every point for one reason (no notebook, an unreadable file, code that does not load). `slowest` pairs students
    with their code's seconds; `suspects` lists timed code that did what no honest code does: student, check, what it
    did.
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
    failed_outright: tuple[tuple[str, tuple[str, ...]], ...]
    slowest: tuple[tuple[str, float], ...]
    suspects: tuple[tuple[str, str, str], ...] = ()


def summarise(records: Sequence[Record], lab: GradedLab, *, names: bool = True) -> Summary:
    """Summarise the records of a lab, at least one.

    Without `names` students are numbered, in an order that reveals neither identity nor marks.
    """
    called = {record.student: record.student for record in records}
    if not names:
        # Order by digest: alphabetical order or marks would identify students to their classmates.
        order = sorted(records, key=lambda record: (record.digest, record.student))
        called = {record.student: f"student {number}" for number, record in enumerate(order, start=1)}
    marks = [record.earned for record in records]
    judged = [record for record in records if not _has_failed_outright(record)]
    failed_outright: dict[str, list[str]] = {}
    for record in records:
        if _has_failed_outright(record):
            failed_outright.setdefault(generalise_reason(record.verdicts[0]), []).append(called[record.student])
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
        failed_outright=tuple(
            (reason, tuple(sorted(who)))
            for reason, who in sorted(failed_outright.items(), key=lambda each: (-len(each[1]), each[0]))
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
    """Replace the numbers in a reason, so that similar failures count as one.

    >>> generalise_reason(Verdict("total", "sum", 3, 0, what="`y` has the wrong value", got="-1.5e3", expected="7"))
    '`y` has the wrong value: got …, expected …'
    """
    case = (
        f": {verdict.case}" if verdict.hidden else ""
    )  # for a hidden case this is all there is; elsewhere it adds nothing
    return NUMBER.sub("…", PLACE.sub("", verdict.reason)) + case


def sum_call_s(record: Record) -> float:
    """Seconds of a submission's own code over all checks, by the judge's clock."""
    return sum(verdict.call_s for verdict in record.verdicts)


def _has_failed_outright(record: Record) -> bool:
    return all(verdict.refused for verdict in record.verdicts)


def _list_checks(records: Sequence[Record]) -> list[str]:
    """All checks on record, in the lab's order."""
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
