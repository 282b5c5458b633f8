"""Grade a lab's submissions: read, judge, record, enter into the gradebook, write feedback; each step can be cut off and resumed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from grader.course import Course
from grader.feedback import page
from grader.gradebook import GradebookWriter
from grader.judge import judge, refused
from grader.labs import GradedLab
from grader.records import Record, read_record, write_atomically
from grader.sandbox import Sandbox
from grader.sanitise import Submission, read_submission, rebuild
from mlsys_lab.errors import CourseError


@dataclass(frozen=True)
class Options:
    """How to grade: threads that wait for sandboxes, stretch of time limits, no sandbox, or all over again."""

    workers: int = 0
    time_factor: float = 1.0
    unsafe: bool = False
    again: bool = False

    @property
    def threads(self) -> int:
        """Workers, one per core unless told."""
        return self.workers or os.cpu_count() or 1


@dataclass(frozen=True)
class Outcome:
    """What became of one student's submission; `judged` tells a fresh verdict from one that was on record."""

    record: Record
    judged: bool


def grade(course: Course, lab: GradedLab, options: Options, students: Sequence[str] | None = None) -> Iterator[Outcome]:
    """Bring records, gradebook and feedback of a lab up to date; yields each student's outcome once all three hold it.

    A submission whose content was judged under this version of the lab is not judged again. The sandbox is started for the first
    submission that needs it.
    """
    _publish(course, lab)
    students = course.students(lab.name) if students is None else students
    with ExitStack() as stack:
        gradebook = stack.enter_context(GradebookWriter(course))
        gradebook.enter(lab.name)
        waiting = [student for student in students if options.again or not _settled(course, lab, student)]
        for student in sorted(set(students) - set(waiting)):
            record = read_record(course.record(student, lab.name))
            assert record is not None
            yield Outcome(_enter(course, lab, record, gradebook), judged=False)
        if not waiting:
            return
        sandbox = stack.enter_context(Sandbox(lab, unsafe=options.unsafe))
        pool = stack.enter_context(ThreadPoolExecutor(options.threads))
        futures = [pool.submit(_judge, course, lab, student, sandbox, options) for student in waiting]
        try:
            for future in as_completed(futures):
                yield Outcome(_enter(course, lab, future.result(), gradebook), judged=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _publish(course: Course, lab: GradedLab) -> None:
    """Give nbgrader the released notebook."""
    write_atomically(course.released(lab.name), lab.info.notebook.read_bytes())


def _settled(course: Course, lab: GradedLab, student: str) -> bool:
    record = read_record(course.record(student, lab.name))
    submission = read_submission(course.submission(student, lab.name), lab)
    return record is not None and record.holds_for(submission.digest, lab.version)


def _judge(course: Course, lab: GradedLab, student: str, sandbox: Sandbox, options: Options) -> Record:
    """Judge one submission and put the verdict on record. Runs in a thread; touches this student's files only."""
    submission = read_submission(course.submission(student, lab.name), lab)
    if submission.artifact is not None:
        verdicts = judge(submission.artifact, sandbox, time_factor=options.time_factor)
    else:
        assert submission.refusal is not None
        verdicts = refused(lab.checks.checks, submission.refusal)
    record = Record(
        student=student,
        lab=lab.name,
        digest=submission.digest,
        version=lab.version,
        verdicts=tuple(verdicts),
        notes=submission.notes,
        sandbox="none" if options.unsafe else "bubblewrap",
    ).stamped()
    _write_sanitised(course, lab, student, submission)
    record.write(course.record(student, lab.name))
    return record


def _write_sanitised(course: Course, lab: GradedLab, student: str, submission: Submission) -> None:
    import nbformat

    target = course.sanitised(student, lab.name)
    write_atomically(target, nbformat.writes(rebuild(submission, lab)).encode())
    stamp = course.submission(student, lab.name).with_name("timestamp.txt")
    if stamp.is_file() and not stamp.is_symlink():
        write_atomically(target.with_name("timestamp.txt"), stamp.read_bytes()[:64])


def _enter(course: Course, lab: GradedLab, record: Record, gradebook: GradebookWriter) -> Record:
    """Bring gradebook and feedback to what the record says. Doing it twice changes nothing."""
    if record.faults:
        return record
    if not record.entered:
        gradebook.enter(lab.name, record.student)
        record = replace(record, entered=True)
        write_atomically(course.feedback(record.student, lab.name), page(record, lab).encode())
        record.write(course.record(record.student, lab.name))
    return record
