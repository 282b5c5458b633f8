"""Write the feedback pages, or copy them out.

examples:
  mlsys-grader feedback autograd                 write feedback/STUDENT/LAB/LAB.html anew
  mlsys-grader feedback autograd --to pages      and copy them to pages/STUDENT.html

The pages have what was typed in formgrader as well: points of cells graded by hand, comments, extra credit, and the
penalty for handing in late.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mlsys_grader.commands import LabOptions
from mlsys_grader.commands.common import find_chosen_lab, read_records
from mlsys_grader.course.files import write_atomically
from mlsys_grader.course.folder import Course
from mlsys_grader.course.lock import lock_course
from mlsys_lab.cli.app import option


@dataclass(kw_only=True)
class Arguments(LabOptions):
    """The lab, and the folder to copy to."""

    to: Annotated[Path | None, option("also copy each page to DIR/STUDENT.html", "DIR")] = None


def run(args: Arguments) -> int:
    """Write every feedback page from its record, and copy them out."""
    from mlsys_grader.gradebook.manual_points import read_manual_points
    from mlsys_grader.reports.feedback import render_feedback

    lab, course = find_chosen_lab(args), Course.open(args.course)
    records = read_records(course, lab)
    with lock_course(course, f"feedback {lab.topic}"):
        if args.to:
            args.to.mkdir(parents=True, exist_ok=True)
        for record in records:
            path = course.feedback(record.student, lab.name)
            write_atomically(path, render_feedback(record, lab, read_manual_points(course, record)).encode())
            if args.to:
                shutil.copyfile(path, args.to / f"{record.student}.html")
    print(f"{len(records)} pages in {args.to or course.root / 'feedback'}")
    return 0
