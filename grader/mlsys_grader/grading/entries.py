"""From verdicts to a record, gradebook, feedback and audit log: each step is atomic and safe to repeat."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mlsys_grader.course import folder, notebooks
from mlsys_grader.course.files import write_atomically
from mlsys_grader.course.folder import Course
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.engines import Result
from mlsys_grader.gradebook.audit import AuditLog
from mlsys_grader.gradebook.backup import back_up
from mlsys_grader.gradebook.manual_points import read_manual_points
from mlsys_grader.gradebook.record import Record, read_record
from mlsys_grader.gradebook.writer import GradebookWriter
from mlsys_grader.intake.sanitise import sanitise
from mlsys_grader.intake.submission import Submission
from mlsys_grader.judging.options import Options
from mlsys_grader.judging.performance import has_device
from mlsys_grader.judging.verdict import Verdict
from mlsys_grader.reports.feedback import render_feedback
from mlsys_lab.errors import CourseError, InputError

JUDGED, ENTERED = "judged", "entered"
"""Audit log events: judged in this run, and entered from an earlier run."""
FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Disk errors that would hit every other submission as well."""


@dataclass(frozen=True)
class Outcome:
    """Outcome for one student's submission: the record, whether it was judged just now, or the error."""

    student: str
    record: Record | None
    judged: bool
    error: str = ""

    @property
    def speed(self) -> list[str]:
        """A line per check with performance points, for the instructor; suspect results are marked."""
        found = [(v.check, v.performance) for v in self.record.verdicts if v.performance] if self.record else []
        mark = {True: "SUSPECT: ", False: ""}
        return [f"{self.student}: {check}: {mark[bool(speed.suspect)]}{speed.line}" for check, speed in found]


@contextmanager
def report_disk_errors() -> Iterator[None]:
    """Turn a disk error into the one line that stops the batch."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write {error.filename}" if error.filename else "cannot write to the course folder",
            got=error.strerror or error,
            help="mend that and run the same command again: what was judged is kept, and nothing is judged twice",
        ) from None


def publish_release(course: Course, lab: GradedLab) -> None:
    """Give nbgrader the released notebook."""
    write_atomically(course.released(lab.name), lab.info.notebook.read_bytes())


def record_result(course: Course, lab: GradedLab, result: Result, submission: Submission, options: Options) -> Record:
    """Write the record of a result, and the submission where nbgrader looks for it; return the record."""
    record = Record(
        student=result.student,
        lab=lab.name,
        digest=submission.digest,
        version=lab.version,
        verdicts=_with_measured(result.verdicts, course, lab, result.student, submission, options),
        notes=submission.notes,
        sandbox=options.sandbox_name,
    ).stamped()
    notebook = notebooks.to_bytes(sanitise(submission, lab))
    write_atomically(course.sanitised(result.student, lab.name), notebook)
    write_stamp(course, lab, result.student)
    record.write(course.record(result.student, lab.name))
    return record


def _with_measured(
    verdicts: tuple[Verdict, ...],
    course: Course,
    lab: GradedLab,
    student: str,
    submission: Submission,
    options: Options,
) -> tuple[Verdict, ...]:
    """Keep performance points measured for the same submission, as long as the check passes.

    If everything is judged again on a machine with the device, they are measured again too.
    """
    before = read_record(course.record(student, lab.name))
    if before is None or not before.holds_for(submission.digest, lab.version):
        return verdicts
    known = {v.check: v.performance for v in before.verdicts if v.passed and v.performance and v.performance.measured}
    if options.again:
        timed = {check.name: check.performance for check in lab.checks.checks if check.performance is not None}
        known = {name: speed for name, speed in known.items() if not has_device(timed[name].device)}
    return tuple(replace(v, performance=known[v.check]) if v.passed and v.check in known else v for v in verdicts)


def write_stamp(course: Course, lab: GradedLab, student: str) -> None:
    """Write the submission time where nbgrader looks for it."""
    target = course.sanitised(student, lab.name).with_name("timestamp.txt")
    if (stamp := course.submitted_at(student, lab.name)) is not None:
        folder.write_stamp(target, stamp)
    else:
        target.unlink(missing_ok=True)


def finish(
    course: Course, lab: GradedLab, record: Record, log: AuditLog, *, event: str, engine: str, refusal: str
) -> Outcome:
    """Complete an entry: feedback, a line in the log, and a record marked as entered.

    `event` is its name in the log, `refusal` the gradebook's error. Raises `OSError` for a disk error.
    """
    error = refusal
    if not refusal:
        try:
            content = render_feedback(record, lab, read_manual_points(course, record))
            write_atomically(course.feedback(record.student, lab.name), content.encode())
        except OSError as trouble:
            if trouble.errno in FATAL:
                raise
            error = f"cannot write the feedback page: {trouble}"
    log.write_outcome(event, record, engine=engine, entered=not refusal, error=error)
    if not error:
        record = replace(record, entered=True)
        record.write(course.record(record.student, lab.name))
    return Outcome(record.student, record, event == JUDGED, error)


def enter_now(
    course: Course, lab: GradedLab, record: Record, options: Options, log: AuditLog, *, event: str
) -> Outcome:
    """Enter one record into gradebook, feedback and log, and wait; return the outcome."""
    with GradebookWriter(course) as gradebook, report_disk_errors():
        back_up(course)
        publish_release(course, lab)
        refusal = ""
        try:
            gradebook.enter(lab.name)
            gradebook.enter(lab.name, record.student)
        except CourseError as error:
            refusal = str(error)
        return finish(course, lab, record, log, event=event, engine=options.engine, refusal=refusal)
