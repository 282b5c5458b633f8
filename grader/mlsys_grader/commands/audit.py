"""Who graded what, when, with which versions, seeds and sandbox.

examples:
  mlsys-grader audit autograd                    every line of the log about a lab
  mlsys-grader audit autograd --student jane     about one student

The log, audit.jsonl in the course folder, is a chain: each line holds the hash of the one before. The command checks
it from the first line on, and exits with 1 where a line was changed, dropped or put in. Keep the last line's hash,
which it prints, in another place: it also tells a log that was made anew as a whole.
"""

from __future__ import annotations

import argparse

from mlsys_grader.commands.common import chosen_lab
from mlsys_grader.course.folder import Course
from mlsys_lab.errors import CourseError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("lab")
    parser.add_argument("--student", metavar="ID", help="only this one")


def run(args: argparse.Namespace) -> int:
    """Check the chain and print the lines that were asked for."""
    from mlsys_grader.gradebook.audit import read_audit

    lab, course = chosen_lab(args), Course.open(args.course)
    history = read_audit(course.audit)
    for entry in history.entries:
        if entry.get("lab") == lab.name and args.student in (None, entry.get("student")):
            print(_line(entry))
    if history.damage:
        raise CourseError("the audit log does not hold together", got=history.damage, help="compare with a copy of it")
    torn = "; a last line that a crash tore is left out" if history.torn else ""
    print(f"the chain of {len(history.entries)} lines holds; hash of the last: {history.last}{torn}")
    return 0


def _line(entry: dict[str, object]) -> str:
    marks = f"{entry['earned']:g} of {entry['points']:g}"
    state = "entered" if entry["entered"] else "not entered"
    error = f": {entry['error']}" if entry["error"] else ""
    parts = (
        f"{entry['time']} {entry['user']}@{entry['host']} {entry['event']} {entry['student']}: {marks}, {state}{error}",
        f"   submission {str(entry['digest'])[:12] or 'missing'}, lab version {entry['version']}, mlsys-lab "
        f"{entry['package']}, seeds {str(entry['seeds'])[:12]}, sandbox {entry['sandbox']}, engine {entry['engine']}",
    )
    return "\n".join("".join(c if c.isprintable() else "?" for c in part) for part in parts)
