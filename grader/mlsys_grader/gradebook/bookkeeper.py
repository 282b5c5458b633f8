"""The process that writes the gradebook, started by `gradebook.writer` with the course folder as argument.

nbgrader changes the working directory, takes seconds to import and warns a lot, so it gets its own process. Each line
of standard input is a request: `{"lab": ..., "student": null}` enters a lab's cells, `{"lab": ..., "student": ...}` the
marks of a student's record; each gets one line in reply. A request is one transaction, and entering the same twice
changes nothing.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import nbgrader.api
from alembic.script import ScriptDirectory
from filelock import FileLock
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.converters import Autograde
from nbgrader.converters.base import BaseConverter
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import SaveCells
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from mlsys_grader.course import notebooks
from mlsys_grader.course.folder import Course
from mlsys_grader.gradebook.nbgrader_config import configure


class SingleAutograde(Autograde):  # type: ignore[misc]
    """nbgrader's autograde for one notebook made by the grader, which needs no sanitising.

    One pass instead of two, and exceptions propagate: nbgrader's own loop only refers to a log.
    """

    def convert_notebooks(self) -> None:
        """Bring the submission into the gradebook and into autograded/."""
        lab, student = self.coursedir.assignment_id, self.coursedir.student_id
        self.notebooks = [self.coursedir.format_path(self._input_directory, student, lab) + f"/{lab}.ipynb"]
        self.init_destination(lab, student)
        self.init_assignment(lab, student)
        for notebook in self.notebooks:
            self.convert_single_notebook(notebook)
        self.set_permissions(lab, student)

    def convert_single_notebook(self, notebook_filename: str) -> None:
        """Enter marks and penalties; the notebook's frame was checked at release."""
        self.exporter._preprocessors = []
        for step in self.autograde_preprocessors:
            if "CheckCellMetadata" not in str(step):
                self.exporter.register_preprocessor(step)
        BaseConverter.convert_single_notebook(self, notebook_filename)


class TransactionSession(Session):
    """A session whose `commit` only flushes; `commit_all` commits."""

    def commit(self) -> None:
        """Flush to the database without committing: nbgrader calls this after every cell."""
        self.flush()

    def commit_all(self) -> None:
        """Commit everything since the last `commit_all` or rollback."""
        super().commit()


class GradebookSession:
    """A course's gradebook, created if needed, open for entries.

    nbgrader opens the database a dozen times per submission: here all of them share one connection, which makes an
    entry cheap and a transaction atomic.
    """

    def __init__(self, course: Course) -> None:
        create_gradebook(course)
        self.course = course
        self.config = read_configuration(course)
        self._url = self.config.CourseDirectory.db_url
        self._transaction = Gradebook(self._url)
        self._transaction.db.remove()
        maker = sessionmaker(autoflush=True, bind=self._transaction.engine, class_=TransactionSession)
        self._transaction.db = scoped_session(maker)
        Gradebook.__init__ = lambda session, *_, **__: session.__dict__.update(self._transaction.__dict__)
        Gradebook.close = lambda _: None

    def enter(self, lab: str, student: str | None) -> None:
        """Enter a lab or a student's marks atomically; raises nbgrader's error."""
        try:
            if student is None:
                self._enter_lab(lab)
            else:
                self._enter_marks(lab, student)
            self._transaction.db().commit_all()
        finally:
            self._transaction.db.remove()  # rolls back what was not committed

    def _enter_lab(self, lab: str) -> None:
        """Enter a lab's cells and points; raises nbgrader's error if they may not change any more."""
        self._transaction.update_or_create_assignment(lab)
        place = {"assignment": lab, "notebook": lab, "db_url": self._url}
        SaveCells(config=self.config).preprocess(
            notebooks.read_notebook(self.course.released(lab)), {"nbgrader": place}
        )

    def _enter_marks(self, lab: str, student: str) -> None:
        """Run nbgrader's autograde on one sanitised submission, with the marks of its record."""
        if not self.course.sanitised(student, lab).with_name("timestamp.txt").exists():
            self._clear_timestamp(lab, student)
        directory = CourseDirectory(config=self.config)
        directory.assignment_id, directory.student_id, directory.notebook_id = lab, student, lab
        converter = SingleAutograde(coursedir=directory, config=self.config)
        converter.force = True
        converter.log = logging.getLogger("nbgrader")
        converter.start()

    def _clear_timestamp(self, lab: str, student: str) -> None:
        """Clear the time of an earlier submission, which nbgrader would keep for one without a time."""
        try:
            self._transaction.find_submission(lab, student).timestamp = None
        except MissingEntry:
            return
        (self.course.root / "autograded" / student / lab / "timestamp.txt").unlink(missing_ok=True)


def find_newest_schema() -> str:
    """Name of the gradebook's newest schema. nbgrader would start a process to find it, which takes three seconds."""
    scripts = ScriptDirectory(str(Path(nbgrader.__file__).parent / "alembic"))
    return str(scripts.get_current_head())


def create_gradebook(course: Course) -> None:
    """Create an empty gradebook atomically: nbgrader, when interrupted, leaves half a database."""
    if not course.gradebook.exists():
        nbgrader.api.get_alembic_version = find_newest_schema
        unfinished = course.gradebook.with_name(".new-gradebook.db")
        unfinished.unlink(missing_ok=True)
        Gradebook(f"sqlite:///{unfinished}").close()
        unfinished.replace(course.gradebook)


def read_configuration(course: Course) -> Any:
    """The course's nbgrader_config.py (late penalties, for example), overridden by the grader's settings."""
    os.chdir(course.root)
    sys.path.append(str(course.root))  # as nbgrader's own commands do: a late-penalty plugin may be there
    config = PyFileConfigLoader("nbgrader_config.py", path=str(course.root)).load_config()
    return configure(Config(config), course.root)


def find_cause(error: BaseException) -> str:
    """The root cause of an exception in one line: SQLite's own message below SQLAlchemy's."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def main() -> None:
    """Serve requests until standard input ends."""
    course = Course(Path(sys.argv[1]))
    replies, sys.stdout = sys.stdout, sys.stderr  # nbgrader's output must not mix with the replies
    first = sys.stdin.readline()
    if not first:
        return
    # A grader that was killed leaves a process like this one behind, which ends with the entry that it is writing.
    with FileLock(course.root / ".gradebook.lock"):
        logging.basicConfig(filename=course.root / "nbgrader.log", level=logging.WARNING)
        session = None
        for line in chain([first], sys.stdin):
            request = json.loads(line)
            error = ""
            try:
                session = session or GradebookSession(course)
                session.enter(request["lab"], request["student"])
            except (Exception, SystemExit) as caught:
                logging.exception("refused %s", request)
                error = find_cause(caught)
            print(json.dumps({"error": error}), file=replies, flush=True)
