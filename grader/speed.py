"""Bring performance points into records: beside a check's own marks, and measured when they can be.

A check that was not passed has no performance points. One that was passed has them "not measured" until a machine with
its device runs `grade`: then this part alone is measured and entered, and correctness is not judged again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace

from grader.audit import AuditLog
from grader.backup import backup
from grader.course import Course
from grader.entering import Outcome, finish, told
from grader.gpu import HOST_MEMORY_BYTES, first_gpu
from grader.gradebook import GradebookWriter
from grader.judge import Verdict
from grader.labs import GradedLab
from grader.launcher import SandboxDied
from grader.lock import locked
from grader.options import Options
from grader.records import read_record
from grader.rounds import Broken, Effort, Party
from grader.sandbox import Sandbox
from grader.sanitise import read_submission
from grader.stands import measurable, on_gpu, stands
from mlsys_lab.checks.deciding.artifact import Artifact
from mlsys_lab.checks.learner.spec import Check, call_name
from mlsys_lab.errors import CourseError

MEASURED = "performance"
"""What the audit log calls a measurement."""
MEMORY_BYTES = {"cpu": 3 << 30, "cuda": HOST_MEMORY_BYTES}
"""What a timed process may hold of the host's memory."""
CPU_S = 3600


def pending(verdicts: Sequence[Verdict]) -> list[str]:
    """Checks whose performance points have not been measured."""
    return [v.check for v in verdicts if v.performance is not None and not v.performance.measured]


def measure_pending(
    course: Course, lab: GradedLab, options: Options, students: Sequence[str], effort: Effort | None = None
) -> Iterator[Outcome]:
    """Measure what no run has measured yet, and bring gradebook and feedback up to it; an outcome per submission.

    Only submissions whose record stands for what was handed in and for this version of the lab. Without the device
    this does nothing. Raises `CourseError` for what stops the others too.
    """
    records = [read_record(course.record(student, lab.name)) for student in students] if measurable(lab) else []
    waiting = {record.student: record for record in records if record is not None and pending(record.verdicts)}
    if not waiting:
        return
    with locked(course, f"measure {lab.topic}"), ExitStack() as stack:
        gradebook = stack.enter_context(GradebookWriter(course))
        with told():
            backup(course)
            log = stack.enter_context(AuditLog(course))
        artifacts = {}
        for student, record in waiting.items():
            submission = read_submission(course.submission(student, lab.name), lab)
            if submission.artifact is not None and record.holds_for(submission.digest, lab.version):
                artifacts[student] = submission.artifact
        wanted = {student: (artifacts[student], waiting[student].verdicts) for student in artifacts}
        for student, verdicts in measured(lab, options, wanted, effort):
            record = replace(waiting[student], verdicts=verdicts, entered=False)
            with told():
                record.write(course.record(student, lab.name))
                refusal = ""
                try:
                    gradebook.enter(lab.name, student)
                except CourseError as error:
                    refusal = str(error)
                yield finish(course, lab, record, log, event=MEASURED, engine=options.engine, refusal=refusal)


def measured(
    lab: GradedLab,
    options: Options,
    wanted: dict[str, tuple[Artifact, tuple[Verdict, ...]]],
    effort: Effort | None = None,
) -> Iterator[tuple[str, tuple[Verdict, ...]]]:
    """Verdicts with their performance points measured, student by student; nothing where the device is not there."""
    effort = effort or Effort()
    names = {name for _, verdicts in wanted.values() for name in pending(verdicts)}
    gpu = first_gpu()
    with ExitStack() as stack:
        found_stands = stack.enter_context(stands(lab, names, effort, gpu))
        if not found_stands:
            return
        given = gpu if on_gpu(found_stands.values()) else None
        sandbox = stack.enter_context(Sandbox(lab, unsafe=options.unsafe, backend=options.sandbox, gpu=given))
        for student, (artifact, verdicts) in wanted.items():
            found = {
                name: stand.measure(opener(sandbox, artifact, lab.checks[name], effort))
                for name, stand in found_stands.items()
                if name in pending(verdicts)
            }
            yield student, tuple(replace(v, performance=found.get(v.check, v.performance)) for v in verdicts)


def opener(
    sandbox: Sandbox, artifact: Artifact, check: Check, effort: Effort
) -> Callable[[], AbstractContextManager[Party]]:
    """What starts a timed process of a submission in the sandbox; at the end of its block that process is dead."""
    performance = check.performance
    assert performance is not None
    orders = {
        "make": call_name(performance.make),
        "call": call_name(performance.call),
        "device": performance.device,
    }
    order = {
        "name": artifact.name,
        "source": artifact.source,
        "time_limit_s": check.time_limit_s,
        "memory_bytes": MEMORY_BYTES[performance.device],
        "cpu_s": CPU_S,
    }

    @contextmanager
    def opened() -> Iterator[Party]:
        try:
            with sandbox.turns.turn(alone=True), sandbox.job() as job:
                party = Party(job.channel, orders)
                party.ask("job", order, deadline=time.monotonic() + effort.start_s)
                yield party
        except SandboxDied:
            raise Broken("it ended the whole sandbox") from None

    return opened
