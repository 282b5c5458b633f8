"""The one process that writes the gradebook.

nbgrader changes the working directory, takes seconds to import and warns a lot, so it lives in a process of its own:
`python -m grader.gradebook COURSE` reads a request per line from standard input, `{"lab": ..., "student": null}` to
enter a lab's cells or `{"lab": ..., "student": ...}` to enter the marks of a student's record, and answers each with a
line. Entering the same twice changes nothing.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from grader import notebooks
from grader.course import Course
from mlsys_lab.errors import CourseError


class GradebookWriter:
    """Starts the writing process and hands it requests; use it as a context manager."""

    def __init__(self, course: Course) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "grader.gradebook", str(course.root)]
        # nbgrader starts `alembic` by its bare name: an environment that is not activated lacks it on its path.
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        }
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
            env=environment,
            start_new_session=True,  # Ctrl-C stops the grader, which then lets this process finish what it is writing
        )

    def __enter__(self) -> GradebookWriter:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def enter(self, lab: str, student: str | None = None) -> None:
        """Enter a lab, or a student's recorded marks in it; raises `CourseError` when the gradebook refuses."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps({"lab": lab, "student": student}) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            raise CourseError(
                "the gradebook's process has died", help="see nbgrader.log in the course folder"
            ) from None
        if answer["error"]:
            raise CourseError(f"the gradebook refused {lab} {student or ''}".rstrip(), got=answer["error"])


def create(course: Course) -> None:
    """Make an empty gradebook, whole or not at all: nbgrader's own way leaves half a database when it is cut off."""
    from nbgrader.api import Gradebook

    if not course.gradebook.exists():
        unfinished = course.gradebook.with_name(".new-gradebook.db")
        unfinished.unlink(missing_ok=True)
        Gradebook(f"sqlite:///{unfinished}").close()
        unfinished.replace(course.gradebook)


def enter_lab(course: Course, lab: str, config: Any) -> None:
    """Tell the gradebook a lab's cells and points; raises what nbgrader does when they may not change any more."""
    from nbgrader.api import Gradebook
    from nbgrader.preprocessors import SaveCells

    url = config.CourseDirectory.db_url
    with Gradebook(url) as gradebook:
        gradebook.update_or_create_assignment(lab)
    notebook = notebooks.read(course.released(lab))
    SaveCells(config=config).preprocess(notebook, {"nbgrader": {"assignment": lab, "notebook": lab, "db_url": url}})


def enter_marks(course: Course, lab: str, student: str, config: Any) -> None:
    """Let nbgrader autograde one sanitised submission with the marks of its record."""
    from nbgrader.converters import Autograde
    from nbgrader.coursedir import CourseDirectory

    directory = CourseDirectory(config=config)
    directory.assignment_id, directory.student_id, directory.notebook_id = lab, student, lab
    converter = Autograde(coursedir=directory, config=config)
    converter.force = True
    converter.log = logging.getLogger("nbgrader")
    converter.start()


def main() -> None:
    """Answer requests until standard input ends."""
    from traitlets.config import Config

    from grader.nbgrader_config import configure

    course = Course(Path(sys.argv[1]))
    replies, sys.stdout = sys.stdout, sys.stderr  # nothing that nbgrader prints may get among the answers
    logging.basicConfig(filename=course.root / "nbgrader.log", level=logging.WARNING)
    config = configure(Config(), course.root)
    created = False
    for line in sys.stdin:
        request = json.loads(line)
        error = ""
        try:
            if not created:
                create(course)
                created = True
            if request["student"] is None:
                enter_lab(course, request["lab"], config)
            else:
                enter_marks(course, request["lab"], request["student"], config)
        except (Exception, SystemExit) as caught:
            logging.exception("refused %s", request)
            error = f"{type(caught).__name__}: {caught}"
        print(json.dumps({"error": error}), file=replies, flush=True)


if __name__ == "__main__":
    main()
