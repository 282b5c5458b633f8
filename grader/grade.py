"""Grade a lab's submissions: judge, record, enter into the gradebook, write feedback; cut off anywhere, it resumes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain

from grader import notebooks
from grader.course import Course
from grader.engines import Engine, Result, Task
from grader.engines.local import LocalEngine
from grader.feedback import page
from grader.gradebook import GradebookWriter
from grader.judge import refused
from grader.labs import GradedLab
from grader.records import Record, write_atomically
from grader.sandbox import Sandbox
from grader.sanitise import Submission, read_submission, rebuild
from grader.status import standing
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
    """What became of one student's submission: the record, whether it was judged just now, or why it could not be."""

    student: str
    record: Record | None
    judged: bool
    error: str = ""


def grade(course: Course, lab: GradedLab, options: Options, students: Sequence[str] | None = None) -> Iterator[Outcome]:
    """Bring records, gradebook and feedback of a lab up to date; yields each student's outcome once all three hold it.

    A submission whose content was judged under this version of the lab is not judged again. One submission that
    cannot be dealt with is one outcome with an error; the others go on.
    """
    students = course.students(lab.name) if students is None else students
    standings = [standing(course, lab, student) for student in students]
    waiting = [s.student for s in standings if options.again or s.state not in ("graded", "judged")]
    done = [s.record for s in standings if s.student not in waiting and s.record is not None]
    yield from (Outcome(record.student, record, judged=False) for record in done if record.entered)
    unentered = [record for record in done if not record.entered]
    if not waiting and not unentered:
        return
    with ExitStack() as stack:
        # The sandbox comes first: where there is none, nothing has been written.
        engine = stack.enter_context(_engine(lab, options)) if waiting else None
        _publish(course, lab)
        gradebook = stack.enter_context(GradebookWriter(course))
        gradebook.enter(lab.name)
        for record in unentered:
            yield _enter(course, lab, record, gradebook, judged=False)
        if engine is None:
            return
        read = {student: read_submission(course.submission(student, lab.name), lab) for student in waiting}
        tasks = [Task(student, found.artifact) for student, found in read.items() if found.artifact is not None]
        results = chain((_refused(lab, student, found) for student, found in read.items()), engine.judge_all(tasks))
        for result in filter(None, results):
            if result.error:
                yield Outcome(result.student, None, judged=False, error=result.error)
                continue
            record = _recorded(course, lab, result, read[result.student], options)
            yield _enter(course, lab, record, gradebook, judged=True)


@contextmanager
def _engine(lab: GradedLab, options: Options) -> Iterator[Engine]:
    with Sandbox(lab, unsafe=options.unsafe) as sandbox:
        yield LocalEngine(sandbox, workers=options.threads, time_factor=options.time_factor)


def _publish(course: Course, lab: GradedLab) -> None:
    """Give nbgrader the released notebook."""
    write_atomically(course.released(lab.name), lab.info.notebook.read_bytes())


def _refused(lab: GradedLab, student: str, submission: Submission) -> Result | None:
    """The result for a submission without an artifact, which no engine needs to see."""
    if submission.artifact is not None:
        return None
    assert submission.refusal is not None
    return Result(student, tuple(refused(lab.checks.checks, submission.refusal)))


def _recorded(course: Course, lab: GradedLab, result: Result, submission: Submission, options: Options) -> Record:
    """Put a result on record, and the submission where nbgrader looks for it."""
    record = Record(
        student=result.student,
        lab=lab.name,
        digest=submission.digest,
        version=lab.version,
        verdicts=result.verdicts,
        notes=submission.notes,
        sandbox="none" if options.unsafe else "bubblewrap",
    ).stamped()
    _write_sanitised(course, lab, result.student, submission)
    record.write(course.record(result.student, lab.name))
    return record


def _write_sanitised(course: Course, lab: GradedLab, student: str, submission: Submission) -> None:
    target = course.sanitised(student, lab.name)
    write_atomically(target, notebooks.to_bytes(rebuild(submission, lab)))
    stamp = course.submission(student, lab.name).with_name("timestamp.txt")
    if stamp.is_file() and not stamp.is_symlink():
        write_atomically(target.with_name("timestamp.txt"), stamp.read_bytes()[:64])
    else:
        target.with_name("timestamp.txt").unlink(missing_ok=True)


def _enter(course: Course, lab: GradedLab, record: Record, gradebook: GradebookWriter, *, judged: bool) -> Outcome:
    """Bring gradebook and feedback to what the record says. Doing it twice changes nothing."""
    if record.faults:
        return Outcome(record.student, record, judged, error=record.faults[0])
    try:
        gradebook.enter(lab.name, record.student)
        write_atomically(course.feedback(record.student, lab.name), page(record, lab).encode())
    except (CourseError, OSError) as error:
        return Outcome(record.student, record, judged, error=str(error))
    record = replace(record, entered=True)
    record.write(course.record(record.student, lab.name))
    return Outcome(record.student, record, judged)
