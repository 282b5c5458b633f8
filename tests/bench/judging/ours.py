"""`mlsys-grader grade` on submissions: the whole command, and what can be told of it from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlsys_grader.course.folder import Course
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.engines import Task
from mlsys_grader.engines.local import LocalEngine
from mlsys_grader.gradebook.record import read_record
from mlsys_grader.gradebook.writer import GradebookWriter
from mlsys_grader.intake.submission import read_submission
from mlsys_grader.sandbox.sandbox import Sandbox
from tests.bench.judging.memory import Peak, peak_of

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Run:
    """One `mlsys-grader grade`: its seconds, and when the first verdicts were there.

    `first_submission_s`: from the start of the process to the first record on disk. `first_check_s`: the same, less
    the time that the checks after the first took. `steady_s`: from the first record to the last.
    """

    total_s: float
    first_check_s: float
    first_submission_s: float
    steady_s: float


def fill(home: Path, lab: GradedLab, contents: Mapping[str, bytes]) -> Course:
    """A course folder into which every student has handed in."""
    course = Course.open(home, create=True)
    for student, content in contents.items():
        target = course.submission(student, lab.name)
        target.parent.mkdir(parents=True)
        target.write_bytes(content)
    return course


def grade(course: Course, lab: GradedLab, *options: str) -> Run:
    """Run the command on a course where nothing has been graded."""
    began, start = time.time(), time.monotonic()
    _end(_start(course, lab, options))
    total_s = time.monotonic() - start
    verdict_at = {}
    for student in course.students(lab.name):  # this file is written with the record, and not again afterwards
        verdict_at[student] = course.sanitised(student, lab.name).stat().st_mtime - began
    first = min(verdict_at, key=lambda student: verdict_at[student])
    record = read_record(course.record(first, lab.name))
    assert record is not None
    later_s = sum(verdict.time_s for verdict in record.verdicts[1:])
    steady_s = max(verdict_at.values()) - verdict_at[first]
    return Run(total_s, verdict_at[first] - later_s, verdict_at[first], steady_s)


def peak_memory(course: Course, lab: GradedLab, *options: str) -> Peak:
    """The same command's memory. To look at it takes time from a command, so none that is timed is looked at."""
    process = _start(course, lab, options)
    with peak_of(process) as peak:
        _end(process)
    return peak


def _start(course: Course, lab: GradedLab, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
    path = [str(ROOT), *([lab.foreign_path] if lab.foreign_path else [])]
    command = [sys.executable, "-c", "import sys; from mlsys_grader.cli import main; sys.exit(main())"]
    command += ["--course", str(course.root), "--labs", str(lab.info.folder.parent), "grade", lab.name, *options]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _end(process: subprocess.Popen[bytes]) -> None:
    said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"mlsys-grader grade failed:\n{said.decode()[-2000:]}")


def judge_each(course: Course, lab: GradedLab) -> list[tuple[float, float]]:
    """Seconds from giving a submission to the engine to having its verdicts, and those of them that it ran itself.

    Its own are `Verdict.call_s` over its checks: from a question's leaving for the sandbox to the answer's arrival,
    loading included. One at a time, in an engine that is warm.
    """
    found = []
    with Sandbox(lab) as sandbox, LocalEngine(sandbox) as engine:
        artifacts = [
            read_submission(course.submission(name, lab.name), lab).artifact for name in course.students(lab.name)
        ]
        for artifact in [artifacts[0], *artifacts]:
            assert artifact is not None
            start = time.monotonic()
            (result,) = engine.judge_all([Task("student", artifact)])
            wall_s = time.monotonic() - start
            if result.error:
                raise SystemExit(result.error)
            found.append((wall_s, sum(verdict.call_s for verdict in result.verdicts)))
    return found[1:]


def enter_each(course: Course, lab: GradedLab) -> list[float]:
    """Seconds that the gradebook's process takes for each student of a graded course, into an empty gradebook."""
    course.gradebook.unlink()
    times = []
    with GradebookWriter(course) as gradebook:
        gradebook.enter(lab.name)
        for student in course.students(lab.name):
            start = time.monotonic()
            gradebook.enter(lab.name, student)
            times.append(time.monotonic() - start)
    return times
