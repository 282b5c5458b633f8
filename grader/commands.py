"""What each command of `mlsys-grader` does with its arguments. Each returns the exit code."""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from math import isfinite
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from grader.course import Course
from grader.labs import GradedLab
from grader.records import Record, read_record, write_atomically
from mlsys_lab.checks.labinfo import find_lab, require_labs
from mlsys_lab.errors import InputError, did_you_mean


def release(args: Namespace) -> int:
    """Build labs/, or tell whether it is up to date."""
    from grader.release import release as build
    from grader.release import sources

    project = args.project.absolute()
    if not (project / "solutions").is_dir():
        raise InputError(
            "no solutions to release", got=project, expected="a checkout of the course", help="--project DIR"
        )
    stale = 0
    for folder in sources(project / "solutions"):
        built = build(folder, project / "pyproject.toml")
        changed = built.stale(project / "labs")
        stale += len(changed)
        if not args.check:
            built.write(project / "labs")
        word = ("stale" if args.check else "written") if changed else "up to date"
        print(f"{built.name}: {word}{': ' + ', '.join(changed) if changed else ''}")
    if args.check and stale:
        raise InputError("labs/ is not what solutions/ gives", help="mlsys-grader release")
    return 0


def collect(args: Namespace) -> int:
    """Copy hand-ins into the course folder."""
    from grader.collect import collect as take
    from grader.collect import count

    lab = _lab(args)
    if not args.source.exists():
        raise InputError("nothing to collect", got=args.source, help="give a folder or a zip")
    course = Course(args.course.absolute())
    results = take(course, lab.name, args.source)
    for result in results:
        if result.status in ("missing", "skipped"):
            print(f"{result.status}: {result.student}: {result.detail}")
    print(", ".join(f"{number} {status}" for status, number in count(results)))
    return 0


def grade(args: Namespace) -> int:
    """Judge, enter, write feedback; a line per submission and a bar."""
    from grader.grade import Options
    from grader.grade import grade as run
    from grader.sandbox import UNSAFE

    if args.workers < 0:
        raise InputError("--workers cannot be that", got=args.workers, expected="1 or more, or 0: one per core")
    if not (args.time_factor > 0 and isfinite(args.time_factor)):
        raise InputError("--time-factor cannot be that", got=args.time_factor, expected="a positive number")
    lab, course = _lab(args), Course.open(args.course)
    students = course.students(lab.name)
    if not students:
        raise InputError(f"nothing was handed in for {lab.name}", help="mlsys-grader collect SOURCE --lab " + lab.topic)
    if unknown := sorted(set(args.student or ()) - set(students)):
        near = did_you_mean(unknown[0], students) or f"mlsys-grader status {lab.topic} lists all"
        raise InputError(f"nothing was handed in for {lab.name} by this student", got=unknown[0], help=near)
    students = sorted(set(args.student or students))
    if args.unsafe:
        print(UNSAFE, file=sys.stderr)
    options = Options(args.workers, args.time_factor, args.unsafe, args.again)
    judged, troubles = 0, 0
    console = Console(highlight=False, soft_wrap=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        bar = progress.add_task(lab.name, total=len(students))
        for outcome in run(course, lab, options, students):
            progress.advance(bar)
            judged += outcome.judged
            troubles += bool(outcome.error)
            if outcome.error or outcome.record is None:
                console.print(Text(f"{outcome.student}: not graded: {outcome.error}", style="red"))
            elif outcome.judged:
                console.print(Text(_summary(outcome.record)))
    print(f"{judged} judged, {len(students) - judged - troubles} were up to date, {troubles} not graded")
    return 1 if troubles else 0


def _summary(record: Record) -> str:
    lost = [verdict for verdict in record.verdicts if not verdict.passed]
    first = f"   {lost[0].check}: {lost[0].reason}" if lost else ""
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    return f"{record.student}: {record.earned:g} of {record.points:g}{first}{more}"


def feedback(args: Namespace) -> int:
    """Write every feedback page from its record, and copy them out."""
    from grader.feedback import page

    lab, course = _lab(args), Course.open(args.course)
    records = _records(course, lab)
    if args.to:
        args.to.mkdir(parents=True, exist_ok=True)
    for record in records:
        path = course.feedback(record.student, lab.name)
        write_atomically(path, page(record, lab).encode())
        if args.to:
            shutil.copyfile(path, args.to / f"{record.student}.html")
    print(f"{len(records)} pages in {args.to or course.root / 'feedback'}")
    return 0


def export(args: Namespace) -> int:
    """Write marks and verdicts to files, or marks to standard output."""
    from grader.export import to_csv, to_json

    lab, course = _lab(args), Course.open(args.course)
    records = _records(course, lab)
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


def status(args: Namespace) -> int:
    """A table of submissions."""
    from grader.status import MEANINGS, standing

    course = Course.open(args.course)
    known = {info.name: info for info in ([find_lab(args.lab, args.labs)] if args.lab else require_labs(args.labs))}
    labs = [GradedLab(known[name]) for name in course.labs() if name in known]
    seen: set[str] = set()
    for lab in labs:
        table = Table("student", "state", "marks", "remark", title=lab.name)
        for student in course.students(lab.name):
            stands = standing(course, lab, student)
            seen.add(stands.state)
            record = stands.record
            marks = f"{record.earned:g} of {record.points:g}" if record else ""
            remark = (record.faults or record.notes or ("",))[0] if record else ""
            table.add_row(Text(student), stands.state, marks, Text(remark))
        Console().print(table)
    for state in MEANINGS:
        if state in seen:
            print(f"{state}: {MEANINGS[state]}")
    if not labs:
        print("nothing has been handed in")
    if not args.lab and (strange := sorted(set(course.labs()) - set(known))):
        print(
            f"not labs of this course: {', '.join(strange)}, in the folders of students below {course.root}/submitted"
        )
    return 0


def _lab(args: Namespace) -> GradedLab:
    return GradedLab(find_lab(args.lab, args.labs))


def _records(course: Course, lab: GradedLab) -> list[Record]:
    """Records of all students of a lab. One without a verdict, or whose check itself failed, is left out and named."""
    students = course.students(lab.name)
    found = [read_record(course.record(student, lab.name)) for student in students]
    records = [record for record in found if record is not None and not record.faults]
    if not records:
        raise InputError(f"nothing of {lab.name} has been graded", help=f"mlsys-grader grade {lab.topic}")
    if left_out := sorted(set(students) - {record.student for record in records}):
        print(f"mlsys-grader: left out, not graded: {', '.join(left_out)}", file=sys.stderr)
    return records
