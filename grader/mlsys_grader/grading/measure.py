"""Bring points for speed into records: beside a check's own marks, and measured when they can be.

A check that was not passed has no such points. One that was passed has them "not measured" until a machine with its
device runs `grade`: then this part alone is measured and entered, and correctness is not judged again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from mlsys_grader.course.folder import Course
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.course.lock import lock_course
from mlsys_grader.gradebook.audit import AuditLog
from mlsys_grader.gradebook.backup import back_up
from mlsys_grader.gradebook.record import read_record
from mlsys_grader.gradebook.writer import GradebookWriter
from mlsys_grader.grading.entries import Outcome, finish, report_disk_errors
from mlsys_grader.intake.submission import read_submission
from mlsys_grader.judging.options import Options
from mlsys_grader.speed.devices import find_measurable
from mlsys_grader.speed.measure import find_unmeasured, measure_all
from mlsys_grader.speed.rounds import Effort
from mlsys_lab.errors import CourseError

MEASURED = "performance"
"""What the audit log calls a measurement."""


def measure_pending(
    course: Course, lab: GradedLab, options: Options, students: Sequence[str], effort: Effort | None = None
) -> Iterator[Outcome]:
    """Measure what no run has measured yet, and bring gradebook and feedback up to it; an outcome per submission.

    Only submissions whose record stands for what was handed in and for this version of the lab. Without the device
    this does nothing. Raises `CourseError` for what stops the others too.
    """
    records = [read_record(course.record(student, lab.name)) for student in students] if find_measurable(lab) else []
    waiting = {record.student: record for record in records if record is not None and find_unmeasured(record.verdicts)}
    if not waiting:
        return
    with lock_course(course, f"measure {lab.topic}"), ExitStack() as stack:
        gradebook = stack.enter_context(GradebookWriter(course))
        with report_disk_errors():
            back_up(course)
            log = stack.enter_context(AuditLog(course))
        artifacts = {}
        for student, record in waiting.items():
            submission = read_submission(course.submission(student, lab.name), lab)
            if submission.artifact is not None and record.holds_for(submission.digest, lab.version):
                artifacts[student] = submission.artifact
        wanted = {student: (artifacts[student], waiting[student].verdicts) for student in artifacts}
        for student, verdicts in measure_all(lab, options, wanted, effort):
            record = replace(waiting[student], verdicts=verdicts, entered=False)
            with report_disk_errors():
                record.write(course.record(student, lab.name))
                refusal = ""
                try:
                    gradebook.enter(lab.name, student)
                except CourseError as error:
                    refusal = str(error)
                yield finish(course, lab, record, log, event=MEASURED, engine=options.engine, refusal=refusal)
