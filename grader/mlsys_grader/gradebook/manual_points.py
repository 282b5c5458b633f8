"""What an instructor added in formgrader: points, extra credit, comments; and the late penalty.

The judge's records do not have it; it is read from the gradebook for the student's page.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass

from mlsys_grader.course.folder import Course
from mlsys_grader.gradebook.backup import open_database
from mlsys_grader.gradebook.record import Record
from mlsys_lab.errors import InputError

CELLS = """
SELECT base_cell.name, COALESCE(grade_cells.max_score, task_cells.max_score),
       grade.auto_score, grade.manual_score, grade.extra_credit, comment.manual_comment
FROM submitted_notebook
JOIN submitted_assignment ON submitted_notebook.assignment_id = submitted_assignment.id
JOIN assignment ON submitted_assignment.assignment_id = assignment.id
JOIN notebook ON submitted_notebook.notebook_id = notebook.id
JOIN base_cell ON base_cell.notebook_id = notebook.id
LEFT JOIN grade_cells ON grade_cells.id = base_cell.id
LEFT JOIN task_cells ON task_cells.id = base_cell.id
LEFT JOIN grade ON grade.cell_id = base_cell.id AND grade.notebook_id = submitted_notebook.id
LEFT JOIN comment ON comment.cell_id = base_cell.id AND comment.notebook_id = submitted_notebook.id
WHERE assignment.name = ? AND submitted_assignment.student_id = ?
ORDER BY base_cell.name
"""
PENALTY = """
SELECT SUM(submitted_notebook.late_submission_penalty)
FROM submitted_notebook
JOIN submitted_assignment ON submitted_notebook.assignment_id = submitted_assignment.id
JOIN assignment ON submitted_assignment.assignment_id = assignment.id
WHERE assignment.name = ? AND submitted_assignment.student_id = ?
"""


@dataclass(frozen=True)
class Cell:
    """One cell of the gradebook. `points` is None for a comment-only cell, `earned` for one not graded yet."""

    name: str
    points: float | None
    earned: float | None
    extra: float
    comment: str
    checked: bool

    @property
    def marks(self) -> str:
        """The points in words, as in `2 of 4 + 1`; "" for a comment-only cell."""
        if self.points is None:
            return ""
        given = "not graded yet, of" if self.earned is None else f"{self.earned:g} of"
        return f"{given} {self.points:g}" + (f" + {self.extra:g}" if self.extra else "")


@dataclass(frozen=True)
class ManualPoints:
    """The total in the gradebook, its penalty, and the cells with manual entries."""

    earned: float
    points: float
    penalty: float
    cells: tuple[Cell, ...]


def read_manual_points(course: Course, record: Record) -> ManualPoints | None:
    """What the gradebook adds to the judge's marks for a record's submission; None if nothing.

    Raises `InputError` for an unreadable gradebook.
    """
    if not course.gradebook.exists():
        return None
    place = (record.lab, record.student)
    try:
        with closing(open_database(course.gradebook)) as database:
            rows = database.execute(CELLS, place).fetchall()
            penalty = database.execute(PENALTY, place).fetchone()[0] or 0.0
    except sqlite3.DatabaseError as error:
        raise InputError(f"cannot read the gradebook {course.gradebook}", got=error) from None
    checks = {verdict.check: verdict.performance for verdict in record.verdicts}
    speed = {v.check: v.performance.earned or 0.0 for v in record.verdicts if v.performance is not None}
    earned = points = 0.0
    cells = []
    for name, most, auto, manual, extra, comment in rows:
        given = max((extra or 0.0) - speed.get(name, 0.0), 0.0)  # performance points are the judge's
        cell = Cell(name, most, auto if manual is None else manual, given, comment or "", name in checks)
        earned, points = earned + (cell.earned or 0.0) + cell.extra, points + (most or 0.0)
        if manual is not None or comment or cell.extra or (most is not None and not cell.checked):
            cells.append(cell)
    if not cells and not penalty:
        return None
    return ManualPoints(max(earned - penalty, 0.0), points, penalty, tuple(cells))
