"""Read a lab's marks from the gradebook's tables: are all recorded marks there, with their submission time?

A record may say that it was entered, and the gradebook may since have been restored from an older copy, deleted or
edited. So `grade` goes by the gradebook itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime

from mlsys_grader.course.folder import Course
from mlsys_grader.gradebook.backup import describe_damage, find_damage, open_database
from mlsys_grader.gradebook.record import Record
from mlsys_lab.errors import InputError

QUERY = """
SELECT submitted_assignment.student_id, submitted_assignment.timestamp, base_cell.name, grade.auto_score
FROM grade
JOIN submitted_notebook ON grade.notebook_id = submitted_notebook.id
JOIN submitted_assignment ON submitted_notebook.assignment_id = submitted_assignment.id
JOIN assignment ON submitted_assignment.assignment_id = assignment.id
JOIN base_cell ON grade.cell_id = base_cell.id
WHERE assignment.name = ?
"""


@dataclass
class Marks:
    """One student's marks in the gradebook: the submission time as text, and the automatic score per cell."""

    submitted_at: str | None
    scores: dict[str, float | None] = field(default_factory=dict)


def read_marks(course: Course, lab: str) -> dict[str, Marks]:
    """Marks in a lab by student; empty without a gradebook. Raises `InputError` for an unreadable one."""
    if not course.gradebook.exists():
        return {}
    found: dict[str, Marks] = {}
    try:
        with closing(open_database(course.gradebook)) as database:
            for student, stamp, cell, score in database.execute(QUERY, (lab,)):
                found.setdefault(student, Marks(stamp)).scores[cell] = score
    except sqlite3.DatabaseError as error:
        if damage := find_damage(course.gradebook):
            raise describe_damage(course, damage) from None
        raise InputError(f"cannot read the gradebook {course.gradebook}", got=error) from None
    return found


def matches_record(marks: Mapping[str, Marks], record: Record, submitted_at: datetime | None) -> bool:
    """Whether the gradebook has all marks of a record and this submission time."""
    entered = marks.get(record.student)
    if entered is None:
        return False
    told = datetime.fromisoformat(entered.submitted_at).replace(microsecond=0) if entered.submitted_at else None
    wanted = submitted_at.replace(tzinfo=None) if submitted_at else None
    return told == wanted and all(entered.scores.get(v.check) == v.earned for v in record.verdicts)
