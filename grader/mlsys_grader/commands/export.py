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

from mlsys_grader.commands.common import find_chosen_lab, read_records, require_folder, write_text
from mlsys_grader.course.folder import Course


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mlsys-grader export` to its parser."""
    parser.add_argument("lab")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="a row per student (default: to standard output)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every check, reason and seed; not for students")


def run(args: argparse.Namespace) -> int:
    """Write marks and verdicts to files, or marks to standard output."""
    from mlsys_grader.reports.export import to_csv, to_json

    lab, course = find_chosen_lab(args), Course.open(args.course)
    require_folder(args.csv)
    require_folder(args.json)
    records = read_records(course, lab)
    if args.csv or not args.json:
        write_text(args.csv, to_csv(records, lab))
    if args.json:
        write_text(args.json, to_json(records))
    return 0
