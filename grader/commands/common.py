"""What several commands share: the lab that was named, and its records."""

from __future__ import annotations

import argparse
import sys

from grader.course import Course
from grader.labs import GradedLab
from grader.records import Record, read_record
from mlsys_lab.checks.labinfo import find_lab
from mlsys_lab.errors import InputError


def chosen_lab(args: argparse.Namespace) -> GradedLab:
    """The lab that a command line names."""
    return GradedLab(find_lab(args.lab, args.labs))


def records_of(course: Course, lab: GradedLab) -> list[Record]:
    """Records of all students of a lab. One without a verdict, or whose check itself failed, is left out and named."""
    students = course.students(lab.name)
    found = [read_record(course.record(student, lab.name)) for student in students]
    records = [record for record in found if record is not None and not record.faults]
    if not records:
        raise InputError(f"nothing of {lab.name} has been graded", help=f"mlsys-grader grade {lab.topic}")
    if left_out := sorted(set(students) - {record.student for record in records}):
        print(f"mlsys-grader: left out, not graded: {', '.join(left_out)}", file=sys.stderr)
    return records
