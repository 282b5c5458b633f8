"""Enter the verdicts that `shard` wrote elsewhere: records, gradebook, feedback.

examples:
  mlsys-grader merge autograd shard-1 shard-2 shard-3 shard-4

All is checked before anything is entered: one verdict for each student who handed in, on the file that is in the course
folder, under this version of the lab, with marks that the checks can give. What cannot be checked is whether a
machine that judged told the truth: merge only what comes from machines of yours.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mlsys_grader.commands import LabOptions
from mlsys_grader.commands.common import find_chosen_lab
from mlsys_grader.course.folder import Course
from mlsys_lab.cli.app import argument


@dataclass(kw_only=True)
class Arguments(LabOptions):
    """The lab, and the shards."""

    shards: Annotated[list[Path], argument("what `shard --out` wrote")]


def run(args: Arguments) -> int:
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
