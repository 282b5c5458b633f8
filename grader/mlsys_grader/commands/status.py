"""Where each submission stands.

examples:
  mlsys-grader status
  mlsys-grader status autograd
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlsys_grader.commands import CourseOptions
from mlsys_grader.course.folder import Course
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.gradebook.record import Record
from mlsys_grader.reports.status import MEANINGS, Standing, find_standings
from mlsys_lab.cli.app import argument
from mlsys_lab.stack.labinfo import find_lab, require_labs

URGENCY = ("fault", "waiting", "changed", "judged", "graded")
"""The order of states in the table."""


@dataclass(kw_only=True)
class Arguments(CourseOptions):
    """The lab, if it is one."""

    lab: Annotated[str | None, argument("one lab (by default all that anything was handed in for)")] = None


def run(args: Arguments) -> int:
    """Print a table of submissions, those that need the instructor first, how many stand where, and what to do next."""
    course = Course.open(args.course)
    known = {info.name: info for info in ([find_lab(args.lab, args.labs)] if args.lab else require_labs(args.labs))}
    labs = [GradedLab(known[name]) for name in course.labs() if name in known]
    for lab in labs:
        found = find_standings(course, lab, course.students(lab.name))
        found.sort(key=lambda stands: (URGENCY.index(stands.state), stands.student))
        Console().print(_table(lab, found))
        counts = Counter(stands.state for stands in found)
        for state in URGENCY:
            if counts[state]:
                print(f"{counts[state]:>5} {state}: {MEANINGS[state]}")
        todo = f"grade {lab.topic}" if set(counts) - {"graded"} else f"feedback {lab.topic} --to DIR"
        print(f"next: mlsys-grader {todo}")
    if not labs:
        print("nothing has been handed in")
    if not args.lab and (strange := sorted(set(course.labs()) - set(known))):
        print(
            f"not labs of this course: {', '.join(strange)}, in the folders of students below {course.root}/submitted"
        )
    return 0


def _table(lab: GradedLab, found: list[Standing]) -> Table:
    table = Table(box=None, pad_edge=False, expand=True, title=lab.name, title_justify="left", title_style="bold")
    table.add_column("student", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("marks", no_wrap=True, justify="right")
    table.add_column("remark", no_wrap=True, overflow="ellipsis", ratio=1)
    for stands in found:
        record = stands.record
        marks = f"{record.earned:g} of {record.points:g}" if record else ""
        table.add_row(Text(stands.student), stands.state, marks, Text(_remark(record) if record else ""))
    return table


def _remark(record: Record) -> str:
    """What the instructor should know first: a fault, why everything was lost, else a note on the file."""
    if record.faults:
        return record.faults[0]
    reasons = {verdict.reason for verdict in record.verdicts}
    if not record.earned and len(reasons) == 1:
        return reasons.pop()
    more = f" (and {len(record.notes) - 1} more)" if len(record.notes) > 1 else ""
    return record.notes[0] + more if record.notes else ""
