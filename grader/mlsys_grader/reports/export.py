"""Export marks as CSV for a gradebook, and all verdicts as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.course.tables import format_csv
from mlsys_grader.gradebook.record import Record


def to_csv(records: Sequence[Record], lab: GradedLab) -> str:
    """One row per student: id, lab, marks, maximum, percentage, marks per check, performance points.

    A performance cell is empty if nothing was measured.
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
    """The records as a JSON list; it contains seeds, so it is not for students."""
    return json.dumps([asdict(record) for record in records], indent=1, ensure_ascii=False) + "\n"
