"""Judge submissions, fill the gradebook, write feedback.

examples:
  mlsys-grader grade autograd                      all that has not been judged yet
  mlsys-grader grade autograd --student jane       one student
  mlsys-grader grade autograd --again              everybody anew
  mlsys-grader grade autograd --time-factor 3      a slow machine: limits three times as long

A submission is judged once for its content and this version of the lab. Kill the command at any moment and start it
again: nothing is lost and nothing is judged twice. A submission that cannot be read gets no points and a reason; it
never stops the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from rich.console import Console
from rich.text import Text

from mlsys_grader.commands.common import JudgingOptions, find_chosen_lab, make_progress_bar, read_judging_options
from mlsys_grader.course.folder import Course
from mlsys_grader.gradebook.record import Record
from mlsys_lab.cli.app import flag, option
from mlsys_lab.errors import InputError, did_you_mean


@dataclass(kw_only=True)
class Arguments(JudgingOptions):
    """The lab, the students, and how to judge."""

    student: Annotated[list[str] | None, option("only this one; may be given several times", "ID")] = None
    again: Annotated[bool, flag("--again", "judge also what has been judged, with new secret inputs")] = False


def run(args: Arguments) -> int:
    """Judge, enter, write feedback; a line per submission and a bar."""
    from mlsys_grader.grading.grade import grade
    from mlsys_grader.grading.measure import measure_pending

    options = replace(read_judging_options(args), again=args.again)
    lab, course = find_chosen_lab(args), Course.open(args.course)
    students = course.students(lab.name)
    if not students:
        raise InputError(f"nothing was handed in for {lab.name}", help="mlsys-grader collect SOURCE --lab " + lab.topic)
    if unknown := sorted(set(args.student or ()) - set(students)):
        near = did_you_mean(unknown[0], students) or f"mlsys-grader status {lab.topic} lists all"
        raise InputError(f"nothing was handed in for {lab.name} by this student", got=unknown[0], help=near)
    students = sorted(set(args.student or students))
    judged, troubles = 0, 0
    console = Console(highlight=False, soft_wrap=True)
    with make_progress_bar(console) as progress:
        bar = progress.add_task(lab.name, total=len(students))
        for outcome in grade(course, lab, options, students):
            progress.advance(bar)
            judged += outcome.judged and not outcome.error
            troubles += bool(outcome.error)
            if outcome.error or outcome.record is None:
                console.print(Text(f"{outcome.student}: not graded: {outcome.error}", style="red"))
            elif outcome.judged:
                console.print(Text(_summary(outcome.record)))
    for outcome in measure_pending(course, lab, options, students):
        troubles += bool(outcome.error)
        for line in outcome.speed:
            console.print(Text(line))
    print(f"{judged} judged, {len(students) - judged - troubles} were up to date, {troubles} not graded")
    return 1 if troubles else 0


def _summary(record: Record) -> str:
    lost = [verdict for verdict in record.verdicts if not verdict.passed]
    first = f"   {lost[0].check}: {lost[0].reason}" if lost else ""
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    return f"{record.student}: {record.earned:g} of {record.points:g}{first}{more}"
