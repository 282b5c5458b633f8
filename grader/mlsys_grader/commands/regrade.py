"""Judge a student's recorded submission again, and compare.

examples:
  mlsys-grader regrade autograd --student jane           replay: the recorded secret inputs; is every verdict the same?
  mlsys-grader regrade autograd --student jane --fresh   new secret inputs
  mlsys-grader regrade autograd --student jane --apply   and let the new marks stand where they differ

Without --apply nothing changes but the audit log, which says what came of it. Exits with 1 when a verdict differs and
was not applied.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

from mlsys_grader.commands.common import JudgingOptions, find_chosen_lab, read_judging_options
from mlsys_grader.course.folder import Course, check_student
from mlsys_lab.cli.app import flag, option


@dataclass(kw_only=True)
class Arguments(JudgingOptions):
    """The lab, the student, and how to judge."""

    student: Annotated[str, option("whose", "ID")]
    fresh: Annotated[bool, flag("--fresh", "draw new secret inputs instead of the recorded ones")] = False
    apply: Annotated[bool, flag("--apply", "enter the new marks where they differ")] = False


def run(args: Arguments) -> int:
    """Judge again and print a line per check, and one that says whether all is as it was."""
    from mlsys_grader.grading.regrade import regrade

    options = read_judging_options(args)
    lab, course = find_chosen_lab(args), Course.open(args.course)
    found = regrade(course, lab, check_student(args.student), options, fresh=args.fresh, apply=args.apply)
    for remark in found.remarks:
        print(f"mlsys-grader: {remark}", file=sys.stderr)
    for check in found.checks:
        before, now = check.before, check.now
        if check.same:
            print(f"{now.check}: the same, {now.earned:g} of {now.points:g}")
        else:
            told = f": {now.reason}" if now.reason else ""
            print(f"{now.check}: DIFFERENT: was {before.earned:g}, is {now.earned:g} of {now.points:g}{told}")
    if found.same:
        print("every verdict is the same")
        return 0
    if found.applied is None:
        print("nothing was changed; --apply enters the new marks")
        return 1
    if found.applied.error:
        print(f"the new marks are on record, but: {found.applied.error}")
        return 1
    print("the new marks are entered")
    return 0
