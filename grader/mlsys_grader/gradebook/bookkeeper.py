"""The process that writes the gradebook, started by `gradebook.writer` with the course folder as its argument.

nbgrader changes the working directory, takes seconds to import and warns a lot, so it lives in a process of its own. A
request per line comes on standard input, `{"lab": ..., "student": null}` to enter a lab's cells or `{"lab": ...,
"student": ...}` to enter the marks of a student's record, and each is answered with a line. Each request is one
transaction: whole or not at all, and entering the same twice changes nothing.
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
    """nbgrader's autograde for one notebook that the grader itself has made, and so needs no sanitising.

    One pass instead of two, and an exception comes through as it is: nbgrader's own loop says to look into a log.
    """

    def convert_notebooks(self) -> None:
        """Bring the one submission into the gradebook and into autograded/."""
        lab, student = self.coursedir.assignment_id, self.coursedir.student_id
        self.notebooks = [self.coursedir.format_path(self._input_directory, student, lab) + f"/{lab}.ipynb"]
        self.init_destination(lab, student)
        self.init_assignment(lab, student)
        for notebook in self.notebooks:
            self.convert_single_notebook(notebook)
        self.set_permissions(lab, student)

    def convert_single_notebook(self, notebook_filename: str) -> None:
        """Marks and penalties; the frame that they stand in was checked when the lab was released."""
        self.exporter._preprocessors = []
        for step in self.autograde_preprocessors:
            if "CheckCellMetadata" not in str(step):
                self.exporter.register_preprocessor(step)
        BaseConverter.convert_single_notebook(self, notebook_filename)


class TransactionSession(Session):
    """A session whose `commit` only sends what there is to the database; `keep` commits."""

    def commit(self) -> None:
        """Send what there is to the database, uncommitted: nbgrader calls this after every cell."""
        self.flush()

    def keep(self) -> None:
        """Make everything since the last `keep` or rollback durable."""
        super().commit()


class Book:
    """A course's gradebook, made if need be, open for entries.

    nbgrader opens the database a dozen times for each submission: in this process all of them share one connection,
    which is what makes an entry cheap, and a transaction of it whole.
    """

    def __init__(self, course: Course) -> None:
        create_gradebook(course)
        self.course = course
        self.config = read_configuration(course)
        self._url = self.config.CourseDirectory.db_url
        self._held = Gradebook(self._url)
        self._held.db.remove()
        maker = sessionmaker(autoflush=True, bind=self._held.engine, class_=TransactionSession)
        self._held.db = scoped_session(maker)
        Gradebook.__init__ = lambda book, *_, **__: book.__dict__.update(self._held.__dict__)
        Gradebook.close = lambda _: None

    def answer(self, lab: str, student: str | None) -> None:
        """Enter a lab or a student's marks, whole or not at all; raises whatever kept nbgrader from it."""
        try:
            if student is None:
                self._enter_lab(lab)
            else:
                self._enter_marks(lab, student)
            self._held.db().keep()
        finally:
            self._held.db.remove()  # rolls back what was not kept

    def _enter_lab(self, lab: str) -> None:
        """Tell the gradebook a lab's cells and points; raises what nbgrader does when they may not change any more."""
        self._held.update_or_create_assignment(lab)
        place = {"assignment": lab, "notebook": lab, "db_url": self._url}
        SaveCells(config=self.config).preprocess(
            notebooks.read_notebook(self.course.released(lab)), {"nbgrader": place}
        )

    def _enter_marks(self, lab: str, student: str) -> None:
        """Let nbgrader autograde one sanitised submission with the marks of its record."""
        if not self.course.sanitised(student, lab).with_name("timestamp.txt").exists():
            self._forget_time(lab, student)
        directory = CourseDirectory(config=self.config)
        directory.assignment_id, directory.student_id, directory.notebook_id = lab, student, lab
        converter = SingleAutograde(coursedir=directory, config=self.config)
        converter.force = True
        converter.log = logging.getLogger("nbgrader")
        converter.start()

    def _forget_time(self, lab: str, student: str) -> None:
        """Drop the time of an earlier hand-in, which nbgrader would leave to a submission without one."""
        try:
            self._held.find_submission(lab, student).timestamp = None
        except MissingEntry:
            return
        (self.course.root / "autograded" / student / lab / "timestamp.txt").unlink(missing_ok=True)


def find_newest_schema() -> str:
    """The name of the gradebook's newest schema. nbgrader starts a process to find it, which takes three seconds."""
    scripts = ScriptDirectory(str(Path(nbgrader.__file__).parent / "alembic"))
    return str(scripts.get_current_head())


def create_gradebook(course: Course) -> None:
    """Make an empty gradebook, whole or not at all: nbgrader's own way leaves half a database when it is cut off."""
    if not course.gradebook.exists():
        nbgrader.api.get_alembic_version = find_newest_schema
        unfinished = course.gradebook.with_name(".new-gradebook.db")
        unfinished.unlink(missing_ok=True)
        Gradebook(f"sqlite:///{unfinished}").close()
        unfinished.replace(course.gradebook)


def read_configuration(course: Course) -> Any:
    """The course folder's nbgrader_config.py, late penalties for one, with the grader's own settings on top."""
    os.chdir(course.root)
    sys.path.append(str(course.root))  # as nbgrader's own commands do it: a late penalty's plugin may lie there
    config = PyFileConfigLoader("nbgrader_config.py", path=str(course.root)).load_config()
    return configure(Config(config), course.root)


def find_cause(error: BaseException) -> str:
    """What an exception began with, in one line: SQLite's own words below SQLAlchemy's."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def main() -> None:
    """Answer requests until standard input ends."""
    course = Course(Path(sys.argv[1]))
    replies, sys.stdout = sys.stdout, sys.stderr  # nothing that nbgrader prints may get among the answers
    first = sys.stdin.readline()
    if not first:
        return
    # A grader that was killed leaves a process like this one behind, which ends with the entry that it is writing.
    with FileLock(course.root / ".gradebook.lock"):
        logging.basicConfig(filename=course.root / "nbgrader.log", level=logging.WARNING)
        book = None
        for line in chain([first], sys.stdin):
            request = json.loads(line)
            error = ""
            try:
                book = book or Book(course)
                book.answer(request["lab"], request["student"])
            except (Exception, SystemExit) as caught:
                logging.exception("refused %s", request)
                error = find_cause(caught)
            print(json.dumps({"error": error}), file=replies, flush=True)
