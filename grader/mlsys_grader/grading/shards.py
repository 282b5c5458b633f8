"""Grade a class in shards: each machine judges one shard into files, and one process merges them into the gradebook.

    OUT/verdicts/STUDENT.json     the record, as `records/LAB/STUDENT.json` of a course folder
    OUT/feedback/STUDENT.html     the page for the student
    OUT/shard.txt                 which shard of how many: a shard of a small class may be empty

A student's shard is fixed: a hash of the id, independent of the other submissions. Merging trusts nothing in a file
that it cannot verify, because the file may come from a machine that ran submissions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from mlsys_checks.sandboxed.spec import Check
from mlsys_grader.course import notebooks
from mlsys_grader.course.files import write_atomically
from mlsys_grader.course.folder import Course, check_student
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.course.lock import lock_course
from mlsys_grader.engines import Result, Task
from mlsys_grader.engines.choice import open_engine
from mlsys_grader.gradebook.audit import AuditLog
from mlsys_grader.gradebook.backup import back_up
from mlsys_grader.gradebook.record import Record, read_record
from mlsys_grader.gradebook.writer import GradebookWriter
from mlsys_grader.grading.entries import Outcome, finish, publish_release, report_disk_errors, write_stamp
from mlsys_grader.intake.sanitise import sanitise
from mlsys_grader.intake.submission import Submission, read_submission
from mlsys_grader.judging.options import Options
from mlsys_grader.judging.performance import await_measurement
from mlsys_grader.judging.verdict import Verdict, fail_all
from mlsys_grader.reports.feedback import render_feedback
from mlsys_grader.sandbox.backend import BACKENDS
from mlsys_grader.speed.measure import measure_all
from mlsys_grader.speed.rounds import MeasurementConfig
from mlsys_lab.errors import CourseError, InputError

MERGED = "merged"
"""Audit log event of a verdict from another machine."""
LABEL = "shard.txt"
FILE_BYTES = 4 << 20
TEXT = 2000


def assign_shard(student: str, shards: int) -> int:
    """The shard of a student, from 1 to `shards`."""
    return int.from_bytes(hashlib.sha256(student.encode()).digest()[:8], "big") % shards + 1


def label_shard(out: Path, number: int, shards: int) -> None:
    """Start a shard's folder with a file that names it: an empty folder could not be uploaded or merged."""
    (out / "verdicts").mkdir(parents=True, exist_ok=True)
    write_atomically(out / LABEL, f"{number}/{shards}\n".encode())


def judge_shard(
    course: Course, lab: GradedLab, options: Options, students: Sequence[str], out: Path
) -> Iterator[tuple[str, str]]:
    """Judge students and write verdicts and pages below `out`; yield each student with an error or "".

    The course folder is only read.
    """
    options = options.settled(course.root)
    submissions = {student: read_submission(course.submission(student, lab.name), lab) for student in students}

    def results() -> Iterator[Result]:
        tasks = [Task(student, found.artifact) for student, found in submissions.items() if found.artifact is not None]
        for student, found in submissions.items():
            if found.refusal is not None:
                yield Result(student, tuple(fail_all(lab.checks.checks, found.refusal)))
        if tasks:
            with open_engine(lab, options) as engine:
                yield from engine.judge_all(tasks)

    for result in results():
        error = result.error
        if not error:
            submission = submissions[result.student]
            record = Record(result.student, lab.name, submission.digest, lab.version, result.verdicts)
            record = replace(record, notes=submission.notes, sandbox=options.sandbox_name).stamped()
            error = next(iter(record.faults), "")
            _put(record, lab, out)
        yield result.student, error


def measure_shard(
    course: Course,
    lab: GradedLab,
    options: Options,
    sources: Sequence[Path],
    out: Path,
    config: MeasurementConfig | None = None,
) -> Iterator[Record]:
    """Measure performance points that other machines left open, and write all verdicts below `out`."""
    shards = read_shards(course, lab, sources)
    records = {record.student: record for record, _ in shards}
    wanted = {
        record.student: (submission.artifact, record.verdicts)
        for record, submission in shards
        if submission.artifact is not None
    }
    for student, verdicts in measure_all(lab, options, wanted, config):
        records[student] = replace(records[student], verdicts=verdicts)
    for record in records.values():
        _put(record, lab, out)
        yield record


def _put(record: Record, lab: GradedLab, out: Path) -> None:
    record.write(out / "verdicts" / f"{record.student}.json")
    write_atomically(out / "feedback" / f"{record.student}.html", render_feedback(record, lab).encode())


def read_shards(course: Course, lab: GradedLab, sources: Iterable[Path]) -> list[tuple[Record, Submission]]:
    """Read all verdicts from shard folders, each with the submission that it is about.

    Raises `InputError` unless every student who submitted has exactly one verdict, on the content in the course folder,
    under this version of the lab, with marks that the checks can give.
    """
    found: dict[str, tuple[Record, Submission]] = {}
    students = course.students(lab.name)
    for source in sources:
        files = sorted((source / "verdicts").glob("*"))
        if not files and not (source / LABEL).is_file():
            raise InputError("no verdicts in this folder", got=source, expected=f"{source}/verdicts/STUDENT.json")
        for file in files:
            student = check_student(file.name.removesuffix(".json"))
            if student not in students:
                raise InputError(f"a verdict on somebody who handed in nothing for {lab.name}", got=student)
            if student in found:
                raise InputError("two verdicts on one student", got=student, help="merge each shard once")
            submission = read_submission(course.submission(student, lab.name), lab)
            found[student] = _checked(file, student, submission, lab), submission
    if missing := [student for student in students if student not in found]:
        raise InputError("no verdict on some students", got=", ".join(missing), help="merge all shards together")
    return [found[student] for student in students]


def _checked(file: Path, student: str, submission: Submission, lab: GradedLab) -> Record:
    """Read the record in a file; `InputError` names what in it is impossible."""
    about = f"the verdict on {student}"
    if file.is_symlink() or not file.is_file() or file.stat().st_size > FILE_BYTES:
        raise InputError(f"{about} is not a file that a shard writes", got=file)
    record = read_record(file)
    if record is None:
        raise InputError(f"{about} is damaged", got=file)
    if (record.student, record.lab) != (student, lab.name):
        raise InputError(f"{about} is about something else", got=f"{record.student}, {record.lab}"[:200])
    if record.version != lab.version:
        got = record.version[:40]
        raise InputError(f"{about} was formed under another version of {lab.name}", got=got, expected=lab.version)
    if record.digest != submission.digest:
        raise InputError(f"{about} is about another file than the one in the course folder", got=record.digest[:12])
    if record.sandbox not in BACKENDS:
        raise InputError(f"{about} was formed without a sandbox", got=record.sandbox[:40])
    try:
        datetime.fromisoformat(record.judged_at)
    except ValueError:
        raise InputError(f"{about} has no time", got=record.judged_at[:40]) from None
    if [verdict.check for verdict in record.verdicts] != [check.name for check in lab.checks.checks]:
        raise InputError(f"{about} is on other checks than those of {lab.name}")
    if record.faults:
        raise InputError(f"{about} is none: a check itself failed", got=record.faults[0][:TEXT])
    for verdict, check in zip(record.verdicts, lab.checks.checks, strict=True):
        if (wrong := _impossible(verdict, check)) is not None:
            raise InputError(f"{about}: check {check.name!r} cannot give {wrong}")
    verdicts = tuple(
        replace(verdict, title=check.title, hint=" ".join(check.hints[0].split()) if verdict.hint else "")
        for verdict, check in zip(record.verdicts, lab.checks.checks, strict=True)
    )
    return replace(record, verdicts=verdicts, notes=submission.notes, entered=False)


def _impossible(verdict: Verdict, check: Check) -> str | None:
    """What in a verdict its check cannot have given, or None."""
    if verdict.points != check.points or verdict.earned not in (0, check.points):
        return f"{verdict.earned:g} of {verdict.points:g} points"
    if not _are_lines(verdict.what, verdict.got, verdict.expected):
        return "such a reason"
    if verdict.case not in ("", *(case.name for case in check.cases)) or verdict.seed < 0:
        return "this case or seed"
    speed, expected = verdict.performance, await_measurement(check.performance, passed=verdict.passed)
    if (speed is None) != (expected is None):
        return "performance points" if expected is None else "no performance points"
    if speed is not None and expected is not None:
        if speed.points != expected.points or (speed.earned and not verdict.passed):
            return f"{speed.earned} of {speed.points:g} performance points"
        if speed.time_s < 0:
            return "less than no time"
        if not _are_lines(speed.why, speed.device, speed.baseline, speed.suspect):
            return "such a measurement"
    return None


def _are_lines(*texts: str) -> bool:
    return all(len(text) <= TEXT and (not text or text.isprintable()) for text in texts)


def merge(course: Course, lab: GradedLab, sources: Sequence[Path]) -> Iterator[Outcome]:
    """Enter the verdicts of shards into records, gradebook and feedback, after verifying all of them."""
    with lock_course(course, f"merge {lab.topic}"), ExitStack() as stack:
        checked = read_shards(course, lab, sources)
        gradebook = stack.enter_context(GradebookWriter(course))
        with report_disk_errors():
            back_up(course)
            log = stack.enter_context(AuditLog(course))
            publish_release(course, lab)
        gradebook.enter(lab.name)
        for record, submission in checked:
            with report_disk_errors():
                notebook = notebooks.to_bytes(sanitise(submission, lab))
                write_atomically(course.sanitised(record.student, lab.name), notebook)
                write_stamp(course, lab, record.student)
                record.write(course.record(record.student, lab.name))
                refusal = ""
                try:
                    gradebook.enter(lab.name, record.student)
                except CourseError as error:
                    refusal = str(error)
                yield finish(course, lab, record, log, event=MERGED, engine="shards", refusal=refusal)
