"""Take in what students handed in.

understood are:
  STUDENT/LAB/LAB.ipynb, STUDENT/any.ipynb                    a folder, or a zip of one
  STUDENT.ipynb, STUDENT_LAB.ipynb, STUDENT - LAB.ipynb       likewise
  Jane Doe_4711_assignsubmission_file_/01-autograd.ipynb      Moodle: "Download all submissions"
  doejane_LATE_4711_88_01-autograd-1.ipynb                    Canvas: "Download Submissions"
  Lab 1_jdoe_attempt_2026-11-20-13-45-12_01-autograd.ipynb    Blackboard: "Assignment File Download"
  7-88 - Jane Doe - Nov 20, 2026 345 PM/01-autograd.ipynb     Brightspace: "Download" of all submissions
  Doe, Jane(jdoe)/Submission attachment(s)/01-autograd.ipynb  Sakai: "Download All", without the folder around it
  assignment_7_export/submission_88/01-autograd.ipynb         Gradescope: "Export Submissions", with its metadata
  STUDENT/.git, LAB-submissions/LAB-STUDENT/.git              the last commit of each checkout

examples:
  mlsys-grader collect ~/Downloads/submissions.zip --lab autograd
  mlsys-grader collect checkouts/ --lab 01-autograd --course spring

What was handed in before stays when this time nothing, or nothing readable, came. Exits with 1 when something was
skipped (an entry that is damaged, a link, a path that leads elsewhere), or when it is unclear whose something is.
Everything else has been taken then; somebody has to look at what was not. A notebook of another lab does not replace
one of this lab.

students.csv in the course folder remembers which name is which student. A name that differs from a known one only in
case, accents, blanks or signs is asked about, and so is another name with a number that Canvas or Brightspace gave to a
known student; --who NAME=STUDENT answers. Moodle gives each student another number for each lab: there the name tells
who it is, and namesakes are asked about.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mlsys_grader.commands import LabOptions
from mlsys_grader.commands.common import find_chosen_lab
from mlsys_grader.course.folder import Course
from mlsys_lab.cli.app import argument, option
from mlsys_lab.errors import InputError


@dataclass(kw_only=True)
class Arguments(LabOptions):
    """What was handed in, for which lab, and by whom."""

    source: Annotated[Path, argument("a folder, a zip, or a folder of git checkouts")]
    lab: Annotated[str, option("what it was handed in for")]
    who: Annotated[list[str] | None, option("whose a name is; may be given several times", "NAME=STUDENT")] = None
    time: Annotated[
        Literal["receipt", "commit"],
        option("when a git checkout was handed in: when it was first collected, or at its commit's date"),
    ] = "receipt"


def run(args: Arguments) -> int:
    """Copy hand-ins into the course folder."""
    from mlsys_grader.intake.collect import collect as take
    from mlsys_grader.intake.collect import count_statuses

    lab = find_chosen_lab(args)
    if not args.source.exists():
        raise InputError("nothing to collect", got=args.source, help="give a folder or a zip")
    course = Course(args.course.absolute())
    results = take(course, lab.name, args.source, settled=_read_settled(args.who or []), time=args.time)
    for result in results:
        if result.status in ("missing", "skipped", "unclear"):
            print(f"{result.status}: {result.student}: {result.detail}")
        if result.status == "aside":
            print(f"no notebooks, and nobody's: {result.detail}")
        if result.remark:
            print(f"{result.student}: {result.remark}")
    print(", ".join(f"{number} {status}" for status, number in count_statuses(results)))
    if timeless := sum(not result.has_time for result in results):
        help_ = "a timestamp.txt next to a notebook says when it was handed in"
        print(f"no time known of {timeless}, for which no late penalty applies; {help_}")
    return 1 if any(result.status in ("skipped", "unclear") for result in results) else 0


def _read_settled(given: list[str]) -> dict[str, str]:
    pairs = [text.rpartition("=") for text in given]
    if wrong := [text for text, (name, _, student) in zip(given, pairs, strict=True) if not name or not student]:
        raise InputError("--who says which name is which student", got=wrong[0], expected="NAME=STUDENT")
    return {name: student for name, _, student in pairs}
