"""Judge a recorded submission again, with its recorded seeds or new ones, and compare."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mlsys_grader.course.folder import Course
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.course.lock import lock_course
from mlsys_grader.engines import Result, Task
from mlsys_grader.engines.choice import open_engine
from mlsys_grader.gradebook.audit import AuditLog
from mlsys_grader.gradebook.record import Record, read_record
from mlsys_grader.grading.entries import Outcome, enter_now, record_result
from mlsys_grader.intake.submission import read_submission
from mlsys_grader.judging.options import Options
from mlsys_grader.judging.verdict import Verdict
from mlsys_lab.errors import CourseError, InputError


@dataclass(frozen=True)
class Difference:
    """A check's recorded verdict and its new one."""

    before: Verdict
    now: Verdict

    @property
    def same(self) -> bool:
        """Whether marks and reason agree; details of a failing answer may name an address or a time."""
        return all(getattr(self.before, name) == getattr(self.now, name) for name in ("earned", "what", "case"))


@dataclass(frozen=True)
class RegradeResult:
    """Result of judging again: check by check, remarks on what has changed since, and the outcome if applied."""

    record: Record
    checks: tuple[Difference, ...]
    remarks: tuple[str, ...]
    applied: Outcome | None = None

    @property
    def same(self) -> bool:
        """Whether every check came out as recorded."""
        return all(check.same for check in self.checks)


def regrade(
    course: Course, lab: GradedLab, student: str, options: Options, *, fresh: bool = False, apply: bool = False
) -> RegradeResult:
    """Judge a student's recorded submission again and log the result; marks change only with `apply`.

    Replays the recorded seeds, or draws new ones with `fresh`. Raises `InputError` if nothing is recorded, or the
    submission has changed since.
    """
    with lock_course(course, f"regrade {lab.topic} --student {student}"):
        before = read_record(course.record(student, lab.name))
        if before is None:
            raise InputError(
                f"nothing of {student} is on record for {lab.name}", help=f"mlsys-grader grade {lab.topic}"
            )
        submission = read_submission(course.submission(student, lab.name), lab)
        if submission.digest != before.digest:
            raise InputError(
                f"{student} has handed in anew since the verdict", help=f"mlsys-grader grade {lab.topic} judges it"
            )
        if submission.artifact is None:
            raise InputError(
                f"the submission of {student} has nothing that could be judged", got=before.verdicts[0].reason
            )
        options = options.settled(course.root)
        seeds = {} if fresh else {verdict.check: verdict.seed for verdict in before.verdicts if verdict.seed}
        with open_engine(lab, options) as engine:
            (result,) = engine.judge_all([Task(student, submission.artifact, seeds)])
        if result.error:
            raise CourseError(f"{student} could not be judged", got=result.error)
        found = RegradeResult(before, tuple(_pairs(before, result)), tuple(_remarks(before, lab, fresh)))
        applied = None
        with AuditLog(course) as log:
            if apply and not found.same:
                record = record_result(course, lab, result, submission, options)
                applied = enter_now(course, lab, record, options, log, event="regraded")
            else:
                now = replace(before, version=lab.version, verdicts=result.verdicts, sandbox=options.sandbox_name)
                event = "regraded: the same" if found.same else "regraded: different, not applied"
                log.write_outcome(event, now, engine=options.engine, entered=False)
        return replace(found, applied=applied)


def _pairs(before: Record, result: Result) -> Iterator[Difference]:
    """Pair the verdicts of each check; one without a counterpart is paired with no points."""
    recorded_ = {verdict.check: verdict for verdict in before.verdicts}
    for now in result.verdicts:
        none = replace(now, earned=0.0, what="not on record", got="", expected="", case="")
        yield Difference(recorded_.pop(now.check, none), now)
    for gone in recorded_.values():
        yield Difference(gone, replace(gone, earned=0.0, what="this check is no longer there", got="", expected=""))


def _remarks(before: Record, lab: GradedLab, fresh: bool) -> Iterator[str]:
    if before.version != lab.version:
        yield f"the lab has changed since: judged as version {before.version}, now {lab.version}"
    if fresh:
        yield "new secret inputs were drawn: a check that lets chance decide may differ"
