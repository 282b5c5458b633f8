"""Hand marks to the one process that writes the gradebook (`gradebook.bookkeeper`), without waiting for it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread
from types import TracebackType
from typing import Any

from mlsys_grader.course.folder import Course
from mlsys_grader.paths import IMPORT_PATH
from mlsys_lab.errors import CourseError

MAX_CRASHES = 3
"""So many times the process may die over one request before the gradebook is given up."""

ENTRY = (
    f"import os, sys; os.nice(5); sys.path[:0] = {IMPORT_PATH!r}; import mlsys_grader.course.notebooks; "
    "from mlsys_grader.gradebook.bookkeeper import main; main()"
)
"""Where cores are few it gives way to the judging, first of all to the start of the sandbox."""


@dataclass(frozen=True)
class Entered:
    """The gradebook's answer about a student's marks, or with None about a lab: entered, or else the error."""

    student: str | None
    error: str


class GradebookWriter:
    """Starts the writing process and hands it requests in a thread; use it as a context manager.

    Answers come into `answers`, in the order of the requests. A process that dies is started again and gets the same
    request: an entry is whole or not there, and entering twice changes nothing.
    """

    def __init__(self, course: Course, answers: SimpleQueue[Any] | None = None) -> None:
        self.answers: SimpleQueue[Any] = SimpleQueue() if answers is None else answers
        self._course = course
        self._requests: SimpleQueue[tuple[str, str | None] | None] = SimpleQueue()
        self._stopped = Event()
        self._process = self._start()
        self._lost = ""
        self._thread = Thread(target=self._serve, name="gradebook", daemon=True)
        self._thread.start()

    def __enter__(self) -> GradebookWriter:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Wait for the entry at hand; what has been handed over beyond it is left for the next time."""
        self._stopped.set()
        self._requests.put(None)
        self._thread.join()

    def hand_over(self, lab: str, student: str | None = None) -> None:
        """Ask for a lab, or a student's recorded marks in it, to be entered."""
        self._requests.put((lab, student))

    def enter(self, lab: str, student: str | None = None) -> None:
        """Enter a lab, or a student's marks in it, and wait; raises `CourseError` when the gradebook refuses."""
        self.hand_over(lab, student)
        if error := self.answers.get().error:
            raise CourseError(error)

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None and not self._stopped.is_set():
            lab, student = request
            error = self._lost or self._ask(lab, student)
            self.answers.put(Entered(student, error))
        self._end()

    def _ask(self, lab: str, student: str | None) -> str:
        for death in range(1, MAX_CRASHES + 1):
            try:
                assert self._process.stdin and self._process.stdout
                self._process.stdin.write(json.dumps({"lab": lab, "student": student}) + "\n")
                self._process.stdin.flush()
                said = json.loads(self._process.stdout.readline())["error"]
            except (OSError, ValueError):  # it is gone, perhaps in the midst of its answer
                self._end()
                if death < MAX_CRASHES:
                    self._process = self._start()
                continue
            return str(CourseError(f"the gradebook refused {lab} {student or ''}".rstrip(), got=said)) if said else ""
        self._lost = str(
            CourseError(
                "the gradebook's process dies again and again",
                help="see nbgrader.log in the course folder; the marks are kept in the records, and the next "
                "`mlsys-grader grade` enters them",
            )
        )
        return self._lost

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", "-c", ENTRY, str(self._course.root)]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C stops the grader, which then lets this process finish what it is writing
        )

    def _end(self) -> None:
        """Let the process come to its end, or collect one that is dead."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(OSError):  # what it did not read any more
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
