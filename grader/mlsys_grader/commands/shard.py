"""Judge one shard of a class on this machine, into files that `merge` enters elsewhere.

examples:
  mlsys-grader shard autograd --shard 1/4 --out shard-1        judge every fourth student, the same ones every time
  mlsys-grader shard autograd --speed-of shard-1 shard-2 --out timed
                                                               measure what these verdicts left open, on a GPU machine

DIR gets verdicts/STUDENT.json and feedback/STUDENT.html. The course folder is not written to, so that machines can
share it, and there is no gradebook here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mlsys_grader.commands.common import JudgingOptions, find_chosen_lab, read_judging_options
from mlsys_grader.course.folder import Course
from mlsys_lab.cli.app import option
from mlsys_lab.errors import InputError


@dataclass(kw_only=True)
class Arguments(JudgingOptions):
    """The lab, the shard of the class, and how to judge."""

    out: Annotated[Path, option("where verdicts and pages go", "DIR")]
    shard: Annotated[str, option("which shard of how many", "I/N")] = "1/1"
    speed_of: Annotated[list[Path] | None, option("measure performance points only, for these verdicts", "DIR...")] = (
        None
    )


def run(args: Arguments) -> int:
    """Judge a shard, or measure for verdicts that are there; a line per student that needs the instructor."""
    from mlsys_grader.grading.shards import assign_shard, judge_shard, label_shard, measure_shard

    options = read_judging_options(args)
    lab, course = find_chosen_lab(args), Course(args.course.absolute())
    if not course.students(lab.name):
        raise InputError(f"nothing was handed in for {lab.name}", got=course.root / "submitted")
    if args.speed_of:
        records = list(measure_shard(course, lab, options, args.speed_of, args.out))
        for record in records:
            for verdict in record.verdicts:
                if verdict.performance is not None:
                    mark = "SUSPECT: " if verdict.performance.suspect else ""
                    print(f"{record.student}: {verdict.check}: {mark}{verdict.performance.line}")
        print(f"{len(records)} verdicts in {args.out}")
        return 0
    number, shards = _shard(args.shard)
    students = [student for student in course.students(lab.name) if assign_shard(student, shards) == number]
    label_shard(args.out, number, shards)
    judged = list(judge_shard(course, lab, options, students, args.out))
    troubles = [(student, error) for student, error in judged if error]
    for student, error in troubles:
        print(f"{student}: not graded: {error}")
    print(f"shard {number} of {shards}: {len(judged) - len(troubles)} judged, {len(troubles)} not")
    return 1 if troubles else 0


def _shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError("--shard cannot be that", got=text, expected="I/N with I from 1 to N, say 1/4")
    return int(found[1]), int(found[2])
