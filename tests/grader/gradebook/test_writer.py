"""The gradebook says what the records say, cell by cell, and tells a refusal."""

import os
import sqlite3
import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from mlsys_grader.gradebook.record import read_record
from mlsys_grader.gradebook.writer import GradebookWriter
from mlsys_lab.errors import CourseError

LAB = "01-tiny"
CELLS = """
select student_id, base_cell.name, auto_score, manual_score, grade_cells.max_score, needs_manual_grade from grade
join submitted_notebook on grade.notebook_id = submitted_notebook.id
join submitted_assignment on submitted_notebook.assignment_id = submitted_assignment.id
join grade_cells on grade.cell_id = grade_cells.id join base_cell on grade.cell_id = base_cell.id
"""


def rows(course, query):
    with closing(sqlite3.connect(course.gradebook)) as database:
        return database.execute(query).fetchall()


@pytest.mark.sandbox
def test_every_cell_agrees_with_the_record(graded):
    recorded = {
        (student, verdict.check, verdict.earned, None, verdict.points, 0)
        for student in graded.students(LAB)
        for verdict in read_record(graded.record(student, LAB)).verdicts
    }
    entered = rows(graded, CELLS)
    assert set(entered) == recorded
    assert len(entered) == len(recorded) == 9


@pytest.mark.sandbox
def test_the_time_of_handing_in_is_there_for_late_penalties(graded):
    stamps = dict(rows(graded, "select student_id, timestamp from submitted_assignment"))
    assert datetime.fromisoformat(stamps["ada"]) == datetime(2026, 3, 4, 4, 6, 7), "05:06:07 +0100, in UTC"
    assert stamps["bob"] is None


@pytest.mark.sandbox
def test_a_refusal_is_told_and_the_next_request_is_answered(graded):
    graded.record("ada", LAB).unlink()
    before = rows(graded, CELLS)
    with GradebookWriter(graded) as gradebook:
        with pytest.raises(CourseError, match="the gradebook refused 01-tiny ada"):
            gradebook.enter(LAB, "ada")
        gradebook.enter(LAB)
    assert {row for row in rows(graded, CELLS) if row[0] != "ada"} == {row for row in before if row[0] != "ada"}
    assert "no verdict on this submission" in (graded.root / "nbgrader.log").read_text()


def test_a_new_gradebook_has_the_schema_that_nbgrader_itself_would_give_it(graded, monkeypatch):
    """nbgrader starts `alembic` by its bare name, from wherever it lies."""
    from nbgrader.api import get_alembic_version

    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert rows(graded, "select version_num from alembic_version") == [(get_alembic_version(),)]
