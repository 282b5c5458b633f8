"""The state of each submission of a lab."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlsys_grader.course.folder import Course
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.gradebook.marks import matches_record, read_marks
from mlsys_grader.gradebook.record import Record, read_record
from mlsys_grader.intake.submission import hash_submission

MEANINGS = {
    "graded": "judged, in the gradebook, feedback written",
    "judged": "judged; `grade` enters it into the gradebook",
    "changed": "handed in again, or the lab changed, since it was judged: `grade` judges it anew",
    "waiting": "not judged yet",
    "fault": "a check itself failed: mend the check, then `grade`",
}


@dataclass(frozen=True)
class Standing:
    """State of one student's submission: a key of MEANINGS, and the record if it was judged."""

    student: str
    state: str
    record: Record | None


def find_standings(course: Course, lab: GradedLab, students: Sequence[str]) -> list[Standing]:
    """The state of each student's submission, in their order.

    Raises `InputError` for an unreadable gradebook.
    """
    marks = read_marks(course, lab.name)
    found = []
    for student in students:
        record = read_record(course.record(student, lab.name))
        if record is None:
            state = "waiting"
        elif record.faults:
            state = "fault"
        elif not record.holds_for(hash_submission(course.submission(student, lab.name)), lab.version):
            state = "changed"
        elif record.entered and matches_record(marks, record, course.submitted_at(student, lab.name)):
            state = "graded"
        else:
            state = "judged"
        found.append(Standing(student, state, record))
    return found
