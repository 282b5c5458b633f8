"""A class, a grader to be killed, and what it must have left behind when it is done."""

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from mlsys_grader.course.folder import Course
from mlsys_grader.intake.collect import collect

LAB = "01-tiny"
ROOT = Path(__file__).parents[2]
KINDS = ("child", "launcher", "gradebook", "command")
TABLES = {
    "marks": """
        SELECT student_id, base_cell.name, auto_score, manual_score, extra_credit, needs_manual_grade
        FROM grade JOIN submitted_notebook ON grade.notebook_id = submitted_notebook.id
        JOIN submitted_assignment ON submitted_notebook.assignment_id = submitted_assignment.id
        JOIN base_cell ON grade.cell_id = base_cell.id ORDER BY 1, 2""",
    "comments": """
        SELECT student_id, base_cell.name, auto_comment, manual_comment
        FROM comment JOIN submitted_notebook ON comment.notebook_id = submitted_notebook.id
        JOIN submitted_assignment ON submitted_notebook.assignment_id = submitted_assignment.id
        JOIN base_cell ON comment.cell_id = base_cell.id ORDER BY 1, 2""",
    "submissions": """
        SELECT student_id, assignment.name, timestamp, late_submission_penalty
        FROM submitted_notebook JOIN submitted_assignment
        ON submitted_notebook.assignment_id = submitted_assignment.id
        JOIN assignment ON submitted_assignment.assignment_id = assignment.id ORDER BY 1, 2""",
    "students": "SELECT id FROM student ORDER BY 1",
    "cells": """
        SELECT base_cell.name, max_score, cell_type FROM grade_cells
        JOIN base_cell ON grade_cells.id = base_cell.id ORDER BY 1""",
}


def hand_ins(folder, hand_in, number):
    """Submissions of every kind: right, wrong in part, blank, damaged, slow but right; with and without a time."""
    nap = "import time\ndef double(x):\n    time.sleep(0.05)\n    return 2 * x\n"
    kinds = [
        json.dumps(hand_in(double=nap)),
        json.dumps(hand_in(double=nap, total="def total(x):\n    return x\n")),
        json.dumps(hand_in(mean=None)),
        json.dumps(hand_in(double=f"{nap}\n\nimport os\n", mean="def mean(x):\n    os._exit(3)\n")),
        "{",
    ]
    for index in range(number):
        student = folder / f"s{index:03d}"
        student.mkdir(parents=True)
        (student / f"{LAB}.ipynb").write_text(kinds[index % 7 % len(kinds)])
        if index % 3:
            (student / "timestamp.txt").write_text(f"2026-03-04 05:{index % 60:02d}:07 UTC")
    return folder


def new_course(root, source):
    course = Course.open(root, create=True)
    collect(course, LAB, source)
    return course


def start(course, labs, *arguments):
    """`mlsys-grader grade tiny` in a process of its own; what it says goes to files beside the course folder."""
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent / "fixtures" / "checks")])
    code = "import sys; from mlsys_grader.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "--course", str(course.root), "--labs", str(labs), "grade", "tiny"]
    with (course.root.parent / f"{course.root.name}.log").open("ab") as log:
        return subprocess.Popen(
            [*command, "--workers", "2", "--time-factor", "5", *arguments],
            env=os.environ | {"PYTHONPATH": path},
            stdout=log,
            stderr=log,
        )


def victims(command, kind):
    """Process ids of one kind below a running command."""
    if kind == "command":
        return [command.pid]
    children: dict[int, list[int]] = {}
    lines: dict[int, bytes] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if stat[0] != "Z":
                    lines[int(entry.name)] = (entry / "cmdline").read_bytes()  # first: it may be gone by now
                    children.setdefault(int(stat[1]), []).append(int(entry.name))
    below, front = [], [command.pid]
    while front:
        front = [child for pid in front for child in children.get(pid, [])]
        below += front
    if kind == "gradebook":
        return [pid for pid in below if b"mlsys_grader.gradebook.bookkeeper" in lines[pid]]
    workers = [
        pid
        for pid in below
        if b"mlsys_grader.sandbox.inside.worker" in lines[pid] and b"bwrap" not in lines[pid].split(b"\0")[0]
    ]
    forks = {child for pid in workers for child in children.get(pid, [])}
    if kind == "launcher":
        return [pid for pid in workers if pid not in forks]
    return [pid for pid in workers if pid in forks and not children.get(pid)]


def kill(pid):
    """Kill outright; tells whether there was somebody to kill. 0 is nobody."""
    if not pid:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def entered(course):
    """How many outcomes the audit log tells of that reached the gradebook."""
    return course.audit.read_text().count('"entered": true') if course.audit.exists() else 0


def records(course):
    """Every record but for whether it has reached the gradebook: whoever is judged anew gets other seeds."""
    paths = course.root.glob(f"records/{LAB}/*.json")
    return {path.stem: json.loads(path.read_text()) | {"entered": None} for path in paths}


def outcome(course):
    """All that a run must leave equal: tables of the gradebook, records without times and seeds, feedback pages."""
    with closing(sqlite3.connect(course.gradebook)) as database:
        found = {name: database.execute(query).fetchall() for name, query in TABLES.items()}
    for path in sorted(course.root.glob(f"records/{LAB}/*.json")):
        record = json.loads(path.read_text())
        del record["judged_at"]
        for verdict in record["verdicts"]:
            for name in ("seed", "time_s", "call_s"):
                del verdict[name]
        found[f"record {path.stem}"] = record
    for path in sorted(course.root.glob(f"feedback/*/{LAB}/{LAB}.html")):
        found[f"feedback {path.parts[-3]}"] = re.sub(r"judged \S+,", "judged,", path.read_text())
    return found
