"""What the gradebook holds of a lab, read from its tables: is every recorded mark there, with its time of handing in?

A record may say that it was entered, and the gradebook may have been put back to an older copy, deleted or edited
since. So what `grade` goes by is the gradebook itself.
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
    """One student's marks as the gradebook has them: the time of handing in as text, the automatic score per cell."""

    handed_in: str | None
    scores: dict[str, float | None] = field(default_factory=dict)


def read_marks(course: Course, lab: str) -> dict[str, Marks]:
    """Read marks in a lab by student; empty without a gradebook. Raises `InputError` for one that cannot be read."""
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


def have_marks(marks: Mapping[str, Marks], record: Record, handed_in: datetime | None) -> bool:
    """Whether the gradebook has a record's marks, all of them, and this time of handing in."""
    entered = marks.get(record.student)
    if entered is None:
        return False
    told = datetime.fromisoformat(entered.handed_in).replace(microsecond=0) if entered.handed_in else None
    wanted = handed_in.replace(tzinfo=None) if handed_in else None
    return told == wanted and all(entered.scores.get(v.check) == v.earned for v in record.verdicts)
