"""Where each submission of a lab stands."""

from __future__ import annotations

from dataclasses import dataclass

from grader.course import Course
from grader.labs import GradedLab
from grader.records import Record, read_record
from grader.sanitise import read_submission

MEANINGS = {
    "graded": "judged, in the gradebook, feedback written",
    "judged": "judged; `grade` enters it into the gradebook",
    "changed": "handed in again, or the lab changed, since it was judged: `grade` judges it anew",
    "waiting": "not judged yet",
    "fault": "a check itself failed: mend the check, then `grade`",
}


@dataclass(frozen=True)
class Standing:
    """One student's standing: a key of MEANINGS, and the record if there is one."""

    student: str
    state: str
    record: Record | None


def standing(course: Course, lab: GradedLab, student: str) -> Standing:
    """Where one submission stands."""
    record = read_record(course.record(student, lab.name))
    if record is None:
        return Standing(student, "waiting", None)
    if record.faults:
        return Standing(student, "fault", record)
    digest = read_submission(course.submission(student, lab.name), lab).digest
    if not record.holds_for(digest, lab.version):
        return Standing(student, "changed", record)
    return Standing(student, "graded" if record.entered else "judged", record)
