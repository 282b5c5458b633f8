"""Enter the verdicts that `shard` wrote elsewhere: records, gradebook, feedback.

examples:
  mlsys-grader merge autograd shard-1 shard-2 shard-3 shard-4

All is checked before anything is entered: one verdict for each student who handed in, on the file that is in the course
folder, under this version of the lab, with marks that the checks can give. What cannot be checked is whether a
machine that judged told the truth: merge only what comes from machines of yours.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mlsys_grader.commands.common import find_chosen_lab
from mlsys_grader.course.folder import Course


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mlsys-grader merge` to its parser."""
    parser.add_argument("lab")
    parser.add_argument("shards", type=Path, nargs="+", metavar="DIR", help="what `shard --out` wrote")


def run(args: argparse.Namespace) -> int:
    """Check all verdicts of the shards, then enter them into the gradebook."""
    from mlsys_grader.grading.shards import merge

    lab, course = find_chosen_lab(args), Course.open(args.course)
    merged, troubles = 0, 0
    for outcome in merge(course, lab, args.shards):
        merged += not outcome.error
        troubles += bool(outcome.error)
        if outcome.error:
            print(f"{outcome.student}: not entered: {outcome.error}")
    print(f"{merged} entered, {troubles} not")
    return 1 if troubles else 0
