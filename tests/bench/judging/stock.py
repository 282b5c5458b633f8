"""Stock nbgrader on the same submissions: tests are cells of the notebook, run in the submission's own kernel."""

from __future__ import annotations

import copy
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.judging.submissions import Submission
from tests.grader import classroom

MARKS = """
select student_id, base_cell.name, auto_score from grade
join submitted_notebook on grade.notebook_id = submitted_notebook.id
join submitted_assignment on submitted_notebook.assignment_id = submitted_assignment.id
join base_cell on grade.cell_id = base_cell.id
"""
TEST = """\
import sys as _sys
from mlsys_checks.trusted.autograd import LAB as _LAB
from mlsys_checks.runner import run_check as _run_check
_report = _run_check(_LAB["{check}"], _sys.modules["__main__"], seed={seed}, hidden=True)
assert _report.passed, _report.line"""
"""The check of a grade cell as an instructor would write it for nbgrader: the same cases, hidden ones too."""
SEED = 2026


def marks(gradebook: Path) -> dict[tuple[str, str], float]:
    """Points by student and check."""
    with sqlite3.connect(gradebook) as database:
        found = {(student, check): float(score or 0) for student, check, score in database.execute(MARKS)}
    database.close()
    return found


def autograde(home: Path, submissions: Sequence[Submission], *, only_code: bool = False) -> float:
    """Seconds of one `nbgrader autograde` in a course with nbgrader's defaults, in `home`; marks in gradebook.db.

    `only_code` leaves out the cells that are neither exported nor tests: the lab's own plots and demonstrations.
    """
    source = home / "source" / classroom.LAB / f"{classroom.LAB}.ipynb"
    source.parent.mkdir(parents=True)
    source.write_bytes(classroom.save(_with_tests(classroom.blank_notebook(), only_code)))
    (home / "nbgrader_config.py").write_text('c = get_config()\nc.CourseDirectory.course_id = "bench"\n')
    _nbgrader(home, "generate_assignment", classroom.LAB)
    for submission in submissions:
        target = home / "submitted" / submission.student / classroom.LAB / f"{classroom.LAB}.ipynb"
        target.parent.mkdir(parents=True)
        target.write_bytes(classroom.save(_with_tests(submission.notebook, only_code)))
    start = time.monotonic()
    _nbgrader(home, "autograde", classroom.LAB)
    return time.monotonic() - start


def _with_tests(notebook: dict, only_code: bool) -> dict:
    notebook = copy.deepcopy(notebook)
    for cell in notebook["cells"]:
        if classroom.is_check(cell):
            cell["source"] = TEST.format(check=classroom.grade_id(cell), seed=SEED)
    if only_code:
        notebook["cells"] = [
            cell
            for cell in notebook["cells"]
            if classroom.grade_id(cell) or "".join(cell["source"]).startswith("#| export")
        ]
    return notebook


def _nbgrader(home: Path, *arguments: str) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-W", "ignore", "-m", "nbgrader", *arguments]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"nbgrader {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
