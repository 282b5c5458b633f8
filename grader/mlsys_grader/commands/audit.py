"""Who graded what, when, with which versions, seeds and sandbox.

examples:
  mlsys-grader audit autograd                    every entry of the log about a lab
  mlsys-grader audit autograd --student jane     about one student

The log is audit.jsonl in the course folder: one JSON object per line, only ever appended to. Exits with 1 where a line
is not JSON, and names it by its number.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated

from mlsys_grader.commands import LabOptions
from mlsys_grader.commands.common import find_chosen_lab
from mlsys_grader.course.folder import Course
from mlsys_lab.cli.app import option
from mlsys_lab.errors import CourseError


@dataclass(kw_only=True)
class Arguments(LabOptions):
    """The lab, and a student."""

    student: Annotated[str | None, option("only this one", "ID")] = None


def run(args: Arguments) -> int:
    """Print the entries that were asked for, and what is wrong with the log."""
    from mlsys_grader.gradebook.audit import read_audit

    lab, course = find_chosen_lab(args), Course.open(args.course)
    history = read_audit(course.audit)
    asked = [
        entry
        for entry in history.entries
        if entry.get("lab") == lab.name and args.student in (None, entry.get("student"))
    ]
    for entry in asked:
        print(describe_entry(entry))
    if history.torn:
        print("the last line was torn by a crash: the next run cuts it off and says so in the log")
    if history.damaged:
        lines = ", ".join(f"line {number}" for number in history.damaged)
        raise CourseError(
            "the audit log has lines that are not JSON objects", got=lines, help="compare with a copy of it"
        )
    print(f"{len(asked)} of the {len(history.entries)} entries in {course.audit}")
    return 0


def describe_entry(entry: dict[str, object]) -> str:
    """An outcome in two printable lines; ? stands for what the entry does not say."""
    said = defaultdict(lambda: "?", {name: _write_plainly(value) for name, value in entry.items()})
    state = "entered" if entry.get("entered") is True else "not entered"
    error = f": {said['error']}" if entry.get("error") else ""
    parts = (
        f"{said['time']} {said['user']}@{said['host']} {said['event']} {said['student']}: "
        f"{said['earned']} of {said['points']}, {state}{error}",
        f"   submission {said['digest'][:12] or 'missing'}, lab version {said['version']}, mlsys-lab "
        f"{said['package']}, seeds {said['seeds'][:12]}, sandbox {said['sandbox']}, engine {said['engine']}",
    )
    return "\n".join("".join(c if c.isprintable() else "?" for c in part) for part in parts)


def _write_plainly(value: object) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
