"""Grade a lab's submissions: judge, record, enter marks, write feedback. Interrupted at any point, it resumes.

    engine, in a thread ─ results ─▶ this thread ─ requests ─▶ gradebook's process
                                     records, feedback, audit log  ◀─ answers ─┘

Neither waits for the other. Files alone say what is done: a record that a submission was judged, the gradebook that its
marks were entered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from mlsys_grader.course.folder import Course
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.course.lock import lock_course
from mlsys_grader.engines import Engine, Result, Task
from mlsys_grader.engines.choice import open_engine
from mlsys_grader.gradebook.audit import AuditLog
from mlsys_grader.gradebook.backup import back_up
from mlsys_grader.gradebook.record import Record
from mlsys_grader.gradebook.writer import EntryResult, GradebookWriter
from mlsys_grader.grading.entries import (
    ENTERED,
    JUDGED,
    Outcome,
    finish,
    publish_release,
    record_result,
    report_disk_errors,
    write_stamp,
)
from mlsys_grader.intake.bounded import stop_worker
from mlsys_grader.intake.submission import Submission, read_submission
from mlsys_grader.judging.options import Options
from mlsys_grader.judging.verdict import fail_all
from mlsys_grader.reports.status import find_standings
from mlsys_lab.errors import CourseError

__all__ = ["Options", "Outcome", "grade"]


def grade(course: Course, lab: GradedLab, options: Options, students: Sequence[str] | None = None) -> Iterator[Outcome]:
    """Bring records, gradebook and feedback of a lab up to date; yield each student's outcome once all three are
    written.

    A submission judged under this version of the lab is not judged again. One that fails gives an outcome with an
    error, and the others go on. Raises `CourseError` for what stops all of them: another grader in the folder, no
    sandbox, a damaged gradebook, a full disk.
    """
    with lock_course(course, f"grade {lab.topic}"):
        found = find_standings(course, lab, course.students(lab.name) if students is None else students)
        waiting = [s.student for s in found if options.again or s.state not in ("graded", "judged")]
        done = [s for s in found if s.student not in waiting]
        yield from (Outcome(s.student, s.record, judged=False) for s in done if s.state == "graded")
        unentered = [s.record for s in done if s.state == "judged" and s.record is not None]
        if waiting or unentered:
            yield from _Batch(course, lab, options).run(waiting, unentered)


@dataclass
class _Batch:
    """One run over submissions. `events` receives results and the gradebook's answers."""

    course: Course
    lab: GradedLab
    options: Options
    events: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    submissions: dict[str, Submission] = field(default_factory=dict)
    entering: dict[str, tuple[Record, bool]] = field(default_factory=dict)  # student -> record, whether judged just now
    stopped: Event = field(default_factory=Event)

    def run(self, waiting: list[str], unentered: list[Record]) -> Iterator[Outcome]:
        """Judge `waiting` and enter `unentered`; yield each outcome once the gradebook has it."""
        with ExitStack() as stack:
            # nbgrader is imported while the sandbox starts; nothing is written before the sandbox is ready.
            gradebook = stack.enter_context(GradebookWriter(self.course, self.events))
            threads: list[Thread] = []
            if waiting:
                stack.callback(_join, threads)  # they end when the engine closes
                self.options = self.options.settled(self.course.root)
                engine = stack.enter_context(open_engine(self.lab, self.options))
                stack.callback(stop_worker)  # a thread may be waiting for it
                stack.callback(self.stopped.set)
            with report_disk_errors():
                back_up(self.course)
                log = stack.enter_context(AuditLog(self.course))
                publish_release(self.course, self.lab)
            gradebook.submit(self.lab.name)
            for record in unentered:
                with report_disk_errors():
                    write_stamp(self.course, self.lab, record.student)
                self._submit_entry(gradebook, record, judged=False)
            if waiting:
                threads.append(Thread(target=self._judge, args=(engine, waiting), name="judging", daemon=True))
                threads[0].start()
            left = len(unentered) + len(waiting)
            while left:
                with report_disk_errors():
                    outcome = self._next(gradebook, log)
                if outcome is not None:
                    left -= 1
                    yield outcome

    def _judge(self, engine: Engine, waiting: list[str]) -> None:
        """Thread: feed the engine and forward its results, one per submission whatever happens."""
        silent = set(waiting)
        try:
            for result in engine.judge_all(self._tasks(waiting, silent)):
                silent.discard(result.student)
                self.events.put(result)
                if self.stopped.is_set():
                    return
            for student in silent:
                self.events.put(Result(student, error="the engine has given no verdict"))
        except BaseException as error:
            self.events.put(error)

    def _tasks(self, waiting: list[str], silent: set[str]) -> Iterator[Task]:
        """Read submissions on demand; one without an artifact is refused here and never reaches an engine."""
        for student in waiting:
            if self.stopped.is_set():
                return
            submission = read_submission(self.course.submission(student, self.lab.name), self.lab)
            self.submissions[student] = submission
            if submission.artifact is not None:
                yield Task(student, submission.artifact)
            else:
                assert submission.refusal is not None
                silent.discard(student)
                self.events.put(Result(student, tuple(fail_all(self.lab.checks.checks, submission.refusal))))

    def _next(self, gradebook: GradebookWriter, log: AuditLog) -> Outcome | None:
        """Handle the next event; return the outcome that it completes, if any."""
        event = self.events.get()
        if isinstance(event, Result):
            return self._judged(event, gradebook, log)
        if isinstance(event, BaseException):
            raise event
        assert isinstance(event, EntryResult)
        if event.student is not None:
            return self._entered(event, log)
        if event.error:
            raise CourseError(event.error)
        return None

    def _judged(self, result: Result, gradebook: GradebookWriter, log: AuditLog) -> Outcome | None:
        submission = self.submissions.pop(result.student)
        error = result.error
        if not error:
            try:
                record = record_result(self.course, self.lab, result, submission, self.options)
            except OSError:
                raise
            except Exception as unforeseen:  # one submission must not stop the others
                error = f"{type(unforeseen).__name__}: {unforeseen}"
        if error:
            names = {"student": result.student, "lab": self.lab.name, "digest": submission.digest}
            log.write("not judged", **names, version=self.lab.version, engine=self.options.engine, error=error)
            return Outcome(result.student, None, judged=False, error=error)
        if record.faults:
            log.write_outcome(JUDGED, record, engine=self.options.engine, entered=False, error=record.faults[0])
            return Outcome(record.student, record, judged=True, error=record.faults[0])
        self._submit_entry(gradebook, record, judged=True)
        return None

    def _submit_entry(self, gradebook: GradebookWriter, record: Record, *, judged: bool) -> None:
        self.entering[record.student] = record, judged
        gradebook.submit(self.lab.name, record.student)

    def _entered(self, answer: EntryResult, log: AuditLog) -> Outcome:
        """Handle the gradebook's answer: feedback, log, record."""
        assert answer.student is not None
        record, judged = self.entering.pop(answer.student)
        event = JUDGED if judged else ENTERED
        engine = self.options.engine
        return finish(self.course, self.lab, record, log, event=event, engine=engine, refusal=answer.error)


def _join(threads: list[Thread]) -> None:
    for thread in threads:
        thread.join()
