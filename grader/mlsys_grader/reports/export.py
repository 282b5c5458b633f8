"""Marks for other programs: a CSV for a gradebook, and every verdict as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.course.tables import format_csv
from mlsys_grader.gradebook.record import Record


def to_csv(records: Sequence[Record], lab: GradedLab) -> str:
    """A row per student: id, lab, marks, points to be had, percent, marks per check, then performance points.

    A cell of performance points is empty where they were not measured.
    """
    names = [check.name for check in lab.checks.checks]
    timed = [check.name for check in lab.checks.checks if check.performance is not None]
    head = ["student", "lab", "earned", "points", "percent", "judged_at"]
    rows = [[*head, *names, *(f"{name}_performance" for name in timed)]]
    for record in records:
        marks = {verdict.check: f"{verdict.earned:g}" for verdict in record.verdicts}
        percent = f"{100 * record.earned / record.points:.1f}"
        head = [record.student, record.lab, f"{record.earned:g}", f"{record.points:g}", percent, record.judged_at]
        speed = {v.check: v.performance.earned for v in record.verdicts if v.performance and v.performance.measured}
        extra = [f"{speed[name]:g}" if name in speed else "" for name in timed]
        rows.append([*head, *(marks.get(name, "") for name in names), *extra])
    return format_csv(rows)


def to_json(records: Sequence[Record]) -> str:
    """The records as they are, a list with one entry per student; seeds included, so not for students."""
    return json.dumps([asdict(record) for record in records], indent=1, ensure_ascii=False) + "\n"
