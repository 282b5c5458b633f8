"""Marks as CSV, every verdict as JSON.

examples:
  mlsys-grader export autograd --csv marks.csv --json verdicts.json
  mlsys-grader export autograd | column -ts,
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from grader.commands.common import chosen_lab, records_of
from grader.course import Course
from grader.records import write_atomically
from mlsys_lab.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("lab")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="a row per student (default: to standard output)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every check, reason and seed; not for students")


def run(args: argparse.Namespace) -> int:
    """Write marks and verdicts to files, or marks to standard output."""
    from grader.export import to_csv, to_json

    lab, course = chosen_lab(args), Course.open(args.course)
    records = records_of(course, lab)
    if args.csv or not args.json:
        _put(args.csv, to_csv(records, lab))
    if args.json:
        _put(args.json, to_json(records))
    return 0


def _put(path: Path | None, text: str) -> None:
    if path is None:
        sys.stdout.write(text)
        return
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise InputError(f"cannot write {path}", got=error.strerror) from None
