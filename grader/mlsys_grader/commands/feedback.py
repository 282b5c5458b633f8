"""Write the feedback pages, or copy them out.

examples:
  mlsys-grader feedback autograd                 write feedback/STUDENT/LAB/LAB.html anew
  mlsys-grader feedback autograd --to pages      and copy them to pages/STUDENT.html

The pages have what was typed in formgrader as well: points of cells graded by hand, comments, extra credit, and the
penalty for handing in late.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from mlsys_grader.commands.common import chosen_lab, records_of
from mlsys_grader.course.files import write_atomically
from mlsys_grader.course.folder import Course
from mlsys_grader.course.lock import locked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("lab")
    parser.add_argument("--to", type=Path, metavar="DIR", help="also copy each page to DIR/STUDENT.html")


def run(args: argparse.Namespace) -> int:
    """Write every feedback page from its record, and copy them out."""
    from mlsys_grader.gradebook.manual_points import by_hand
    from mlsys_grader.reports.feedback import page

    lab, course = chosen_lab(args), Course.open(args.course)
    records = records_of(course, lab)
    with locked(course, f"feedback {lab.topic}"):
        if args.to:
            args.to.mkdir(parents=True, exist_ok=True)
        for record in records:
            path = course.feedback(record.student, lab.name)
            write_atomically(path, page(record, lab, by_hand(course, record)).encode())
            if args.to:
                shutil.copyfile(path, args.to / f"{record.student}.html")
    print(f"{len(records)} pages in {args.to or course.root / 'feedback'}")
    return 0
