"""Where each submission stands.

examples:
  mlsys-grader status
  mlsys-grader status autograd
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grader.course import Course
from grader.labs import GradedLab
from mlsys_lab.checks.labinfo import find_lab, require_labs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("lab", nargs="?", help="one lab (default: all that anything was handed in for)")


def run(args: argparse.Namespace) -> int:
    """A table of submissions."""
    from grader.status import MEANINGS, standings

    course = Course.open(args.course)
    known = {info.name: info for info in ([find_lab(args.lab, args.labs)] if args.lab else require_labs(args.labs))}
    labs = [GradedLab(known[name]) for name in course.labs() if name in known]
    seen: set[str] = set()
    for lab in labs:
        table = Table("student", "state", "marks", "remark", title=lab.name)
        for stands in standings(course, lab, course.students(lab.name)):
            seen.add(stands.state)
            record = stands.record
            marks = f"{record.earned:g} of {record.points:g}" if record else ""
            remark = (record.faults or record.notes or ("",))[0] if record else ""
            table.add_row(Text(stands.student), stands.state, marks, Text(remark))
        Console().print(table)
    for state in MEANINGS:
        if state in seen:
            print(f"{state}: {MEANINGS[state]}")
    if not labs:
        print("nothing has been handed in")
    if not args.lab and (strange := sorted(set(course.labs()) - set(known))):
        print(
            f"not labs of this course: {', '.join(strange)}, in the folders of students below {course.root}/submitted"
        )
    return 0
