"""Measure pending performance points and enter them.

A check that failed has no performance points. One that passed has them "not measured" until a machine with its device
runs `grade`: then only this part is measured and entered, and correctness is not judged again.
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
from mlsys_grader.speed.rounds import MeasurementConfig
from mlsys_lab.errors import CourseError

MEASURED = "performance"
"""Audit log event of a measurement."""


def measure_pending(
    course: Course, lab: GradedLab, options: Options, students: Sequence[str], config: MeasurementConfig | None = None
) -> Iterator[Outcome]:
    """Measure what no run has measured yet, and update gradebook and feedback; yield an outcome per submission.

    Takes submissions whose record matches their content and this version of the lab. Does nothing without the device.
    Raises `CourseError` for what stops the others too.
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
        for student, verdicts in measure_all(lab, options, wanted, config):
            record = replace(waiting[student], verdicts=verdicts, entered=False)
            with report_disk_errors():
                record.write(course.record(student, lab.name))
                refusal = ""
                try:
                    gradebook.enter(lab.name, student)
                except CourseError as error:
                    refusal = str(error)
                yield finish(course, lab, record, log, event=MEASURED, engine=options.engine, refusal=refusal)
