"""An instructor's course folder.

submitted/STUDENT/LAB/LAB.ipynb     what was handed in, untouched; beside it timestamp.txt, the time that penalties go
                                    by, and of a git checkout received.txt and committed.txt
students.csv                        the id of each name that hand-ins came under (intake.roster)
records/LAB/STUDENT.json            verdicts (gradebook.record)
released/LAB/LAB.ipynb              the notebook that was given out, for nbgrader
sanitised/STUDENT/LAB/LAB.ipynb     the submission as nbgrader gets to see it
autograded/STUDENT/LAB/LAB.ipynb    the same with marks, by nbgrader
feedback/STUDENT/LAB/LAB.html       the page for the student
gradebook.db, nbgrader_config.py, nbgrader.log
backups/gradebook-NUMBER-TIME.db    the gradebook as it was before each batch (gradebook.backup)
audit.jsonl                         who graded what, with which version, seeds and sandbox (gradebook.audit)
.grader.lock, .gradebook.lock       held by whoever writes at the moment (course.lock)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from mlsys_grader.course.files import write_atomically
from mlsys_lab.errors import InputError

STUDENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
CONFIG = """\
# Makes nbgrader's own tools (formgrader, export, ...) work in this folder.
from mlsys_grader.gradebook.nbgrader_config import configure

configure(get_config())  # noqa: F821
"""


@dataclass(frozen=True)
class Course:
    """A course folder: the path of each thing that is kept in it, and its lock."""

    root: Path

    @classmethod
    def open(cls, root: Path, *, create: bool = False) -> Course:
        """Open the course at `root`. Raises `InputError` when there is none, or it cannot be written to."""
        root = root.absolute()
        if not create and not (root / "submitted").is_dir():
            raise InputError(
                "no course folder", got=root, help="mlsys-grader collect makes one; --course names another"
            )
        course = cls(root)
        course.lay_out()
        return course

    def lay_out(self) -> None:
        """Make the folder, and nbgrader's configuration in it. Raises `InputError` when it cannot be written to."""
        try:
            (self.root / "submitted").mkdir(parents=True, exist_ok=True)
            if not (self.root / "nbgrader_config.py").exists():
                (self.root / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write to the course folder {self.root}", got=error.strerror) from None

    def submission(self, student: str, lab: str) -> Path:
        """Path of the notebook that a student handed in for a lab."""
        return self.root / "submitted" / student / lab / f"{lab}.ipynb"

    def handed_in(self, student: str, lab: str) -> datetime | None:
        """When a student handed a lab in, in UTC and to the second; None where nothing says."""
        return read_stamp(self.submission(student, lab).with_name("timestamp.txt"))

    def sanitised(self, student: str, lab: str) -> Path:
        """Path of a student's notebook as nbgrader gets to see it."""
        return self.root / "sanitised" / student / lab / f"{lab}.ipynb"

    def released(self, lab: str) -> Path:
        """Path of the notebook that was given out."""
        return self.root / "released" / lab / f"{lab}.ipynb"

    def record(self, student: str, lab: str) -> Path:
        """Path of the record of a student's verdicts in a lab."""
        return self.root / "records" / lab / f"{student}.json"

    def feedback(self, student: str, lab: str) -> Path:
        """Path of a student's feedback page; named as nbgrader's release_feedback looks for it."""
        return self.root / "feedback" / student / lab / f"{lab}.html"

    @property
    def roster(self) -> Path:
        """Path of the table of names and students' ids."""
        return self.root / "students.csv"

    @property
    def gradebook(self) -> Path:
        """Path of nbgrader's database."""
        return self.root / "gradebook.db"

    @property
    def backups(self) -> Path:
        """Folder of the gradebook's copies."""
        return self.root / "backups"

    @property
    def audit(self) -> Path:
        """Path of the audit log."""
        return self.root / "audit.jsonl"

    @property
    def lock(self) -> Path:
        """The file that whoever writes to the course holds a lock on."""
        return self.root / ".grader.lock"

    def students(self, lab: str) -> list[str]:
        """Students with a folder for a lab, whatever is in it; `InputError` for a folder that cannot be an id."""
        found = sorted(path.parent.name for path in self.root.glob(f"submitted/*/{lab}") if path.is_dir())
        for student in found:
            check_student(student)
        return found

    def labs(self) -> list[str]:
        """Labs of which anything was handed in."""
        found = {path.name for path in self.root.glob("submitted/*/*") if path.is_dir()}
        return sorted(name for name in found if not name.startswith("."))


def write_stamp(path: Path, time: datetime) -> None:
    """Write a time as nbgrader reads it: in UTC, since it takes an offset like +0100 for a hundred seconds."""
    write_atomically(path, f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC\n".encode())


def read_stamp(path: Path) -> datetime | None:
    """The time in nbgrader's timestamp.txt, in UTC and to the second; None where there is none that can be read."""
    try:
        if path.is_symlink():
            return None
        with path.open(encoding="utf-8") as file:
            return parse_stamp(file.read(100))
    except (OSError, ValueError):
        return None


def parse_stamp(text: str) -> datetime | None:
    """The time that a timestamp.txt holds, in UTC and to the second; None for a text that is no time.

    UTC where the text names no zone, as nbgrader has it; a zone may be an offset or a name like Europe/Zurich.
    """
    text = text.strip()
    try:
        zone = ZoneInfo("UTC")
        if text.count(" ") == 2 and text[-1].isalpha():
            text, _, name = text.rpartition(" ")
            zone = ZoneInfo("UTC" if name == "Z" else name)
        stamp = datetime.fromisoformat(re.sub(r"\s+(?=[+-])", "", text))  # no space before an offset
        return (stamp if stamp.tzinfo else stamp.replace(tzinfo=zone)).astimezone(UTC).replace(microsecond=0)
    except (ValueError, KeyError, OverflowError, OSError):
        return None


def check_student(student: str) -> str:
    """Return a student's id unchanged; `InputError` for one that no folder or gradebook can have."""
    if not STUDENT.fullmatch(student):
        raise InputError(
            "not a student id",
            got=repr(student),
            expected="letters, digits and . _ @ -",
            help="rename the folder below submitted/",
        )
    return student
