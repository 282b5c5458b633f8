"""Take in what students handed in.

understood are:
  STUDENT/LAB/LAB.ipynb, STUDENT/any.ipynb, STUDENT.ipynb     a folder, or a zip of one
  Jane Doe_4711_assignsubmission_file_/01-autograd.ipynb      Moodle: "Download all submissions"
  doejane_LATE_4711_88_01-autograd-1.ipynb                    Canvas: "Download Submissions"
  STUDENT/.git                                                the last commit of each checkout, with its time

examples:
  mlsys-grader collect ~/Downloads/submissions.zip --lab autograd
  mlsys-grader collect checkouts/ --lab 01-autograd --course spring

What was handed in before stays when this time nothing, or nothing readable, came. Exits with 1 when something was
skipped: an entry that is damaged, a link, a path that leads elsewhere. Everything else has been taken then; somebody
has to look at what was not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mlsys_grader.commands.common import find_chosen_lab
from mlsys_grader.course.folder import Course
from mlsys_lab.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mlsys-grader collect` to its parser."""
    parser.add_argument("source", type=Path, help="a folder, a zip, or a folder of git checkouts")
    parser.add_argument("--lab", required=True, help="what it was handed in for")


def run(args: argparse.Namespace) -> int:
    """Copy hand-ins into the course folder."""
    from mlsys_grader.intake.collect import collect as take
    from mlsys_grader.intake.collect import count_statuses

    lab = find_chosen_lab(args)
    if not args.source.exists():
        raise InputError("nothing to collect", got=args.source, help="give a folder or a zip")
    course = Course(args.course.absolute())
    results = take(course, lab.name, args.source)
    for result in results:
        if result.status in ("missing", "skipped"):
            print(f"{result.status}: {result.student}: {result.detail}")
    print(", ".join(f"{number} {status}" for status, number in count_statuses(results)))
    return 1 if any(result.status == "skipped" for result in results) else 0
