"""Marks as CSV, every verdict as JSON.

examples:
  mlsys-grader export autograd --csv marks.csv --json verdicts.json
  mlsys-grader export autograd | column -ts,

These are the judge's marks. With what was typed in formgrader and penalties for lateness: `nbgrader export`, run in
the course folder, writes grades.csv.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mlsys_grader.commands import LabOptions
from mlsys_grader.commands.common import find_chosen_lab, read_records, require_folder, write_text
from mlsys_grader.course.folder import Course
from mlsys_lab.cli.app import option


@dataclass(kw_only=True)
class Arguments(LabOptions):
    """The lab, and the files to write."""

    csv: Annotated[Path | None, option("a row per student (by default to standard output)", "FILE")] = None
    json: Annotated[Path | None, option("all verdicts and seeds; not for students", "FILE")] = None


def run(args: Arguments) -> int:
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
