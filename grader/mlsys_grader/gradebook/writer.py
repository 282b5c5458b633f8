"""Client of the process that writes the gradebook (`gradebook.bookkeeper`): submit entries without waiting."""

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
"""Crashes of the process over one request before the gradebook is given up."""

ENTRY = (
    f"import os, sys; os.nice(5); sys.path[:0] = {IMPORT_PATH!r}; import mlsys_grader.course.notebooks; "
    "from mlsys_grader.gradebook.bookkeeper import main; main()"
)
"""Runs at lower priority: where cores are few, judging and the start of the sandbox come first."""


@dataclass(frozen=True)
class EntryResult:
    """Result of entering a student's marks, or a lab (None): the error, or ""."""

    student: str | None
    error: str


class GradebookWriter:
    """Start the writing process and send it requests from a thread. Use it as a context manager.

    `results` receives the results in the order of the requests. If the process dies it is restarted with the same
    request: an entry is atomic, and entering twice changes nothing.
    """

    def __init__(self, course: Course, results: SimpleQueue[Any] | None = None) -> None:
        self.results: SimpleQueue[Any] = SimpleQueue() if results is None else results
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
        """Wait for the current entry; pending ones are left for the next run."""
        self._stopped.set()
        self._requests.put(None)
        self._thread.join()

    def submit(self, lab: str, student: str | None = None) -> None:
        """Queue a lab, or a student's recorded marks, to be entered."""
        self._requests.put((lab, student))

    def enter(self, lab: str, student: str | None = None) -> None:
        """Enter a lab or a student's marks and wait; raises `CourseError` if the gradebook refuses."""
        self.submit(lab, student)
        if error := self.results.get().error:
            raise CourseError(error)

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None and not self._stopped.is_set():
            lab, student = request
            error = self._lost or self._request(lab, student)
            self.results.put(EntryResult(student, error))
        self._end()

    def _request(self, lab: str, student: str | None) -> str:
        for death in range(1, MAX_CRASHES + 1):
            try:
                assert self._process.stdin and self._process.stdout
                self._process.stdin.write(json.dumps({"lab": lab, "student": student}) + "\n")
                self._process.stdin.flush()
                said = json.loads(self._process.stdout.readline())["error"]
            except (OSError, ValueError):  # it died, perhaps while answering
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
            start_new_session=True,  # on Ctrl-C the grader lets this process finish its entry
        )

    def _end(self) -> None:
        """Wait for the process to end."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(OSError):  # unread requests
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
