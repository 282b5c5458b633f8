"""Marks as CSV, every verdict as JSON.

examples:
  mlsys-grader export autograd --csv marks.csv --json verdicts.json
  mlsys-grader export autograd | column -ts,

These are the judge's marks. With what was typed in formgrader and penalties for lateness: `nbgrader export`, run in
the course folder, writes grades.csv.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mlsys_grader.commands.common import chosen_lab, put, records_of
from mlsys_grader.course.folder import Course


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("lab")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="a row per student (default: to standard output)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every check, reason and seed; not for students")


def run(args: argparse.Namespace) -> int:
    """Write marks and verdicts to files, or marks to standard output."""
    from mlsys_grader.reports.export import to_csv, to_json

    lab, course = chosen_lab(args), Course.open(args.course)
    records = records_of(course, lab)
    if args.csv or not args.json:
        put(args.csv, to_csv(records, lab))
    if args.json:
        put(args.json, to_json(records))
    return 0
