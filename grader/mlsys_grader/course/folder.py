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
    """A course folder: the path of everything in it."""

    root: Path

    @classmethod
    def open(cls, root: Path, *, create: bool = False) -> Course:
        """Open the course at `root`. Raises `InputError` if there is none, or it is not writable."""
        root = root.absolute()
        if not create and not (root / "submitted").is_dir():
            raise InputError(
                "no course folder", got=root, help="mlsys-grader collect makes one; --course names another"
            )
        course = cls(root)
        course.lay_out()
        return course

    def lay_out(self) -> None:
        """Create the folder with nbgrader's configuration. Raises `InputError` if it is not writable."""
        try:
            (self.root / "submitted").mkdir(parents=True, exist_ok=True)
            if not (self.root / "nbgrader_config.py").exists():
                (self.root / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write to the course folder {self.root}", got=error.strerror) from None

    def submission(self, student: str, lab: str) -> Path:
        return self.root / "submitted" / student / lab / f"{lab}.ipynb"

    def submitted_at(self, student: str, lab: str) -> datetime | None:
        """When a student submitted a lab, in UTC to the second; None if unknown."""
        return read_stamp(self.submission(student, lab).with_name("timestamp.txt"))

    def sanitised(self, student: str, lab: str) -> Path:
        """Path of a student's notebook as nbgrader sees it."""
        return self.root / "sanitised" / student / lab / f"{lab}.ipynb"

    def released(self, lab: str) -> Path:
        return self.root / "released" / lab / f"{lab}.ipynb"

    def record(self, student: str, lab: str) -> Path:
        return self.root / "records" / lab / f"{student}.json"

    def feedback(self, student: str, lab: str) -> Path:
        """Path of a student's feedback page, where nbgrader's release_feedback looks for it."""
        return self.root / "feedback" / student / lab / f"{lab}.html"

    @property
    def roster(self) -> Path:
        return self.root / "students.csv"

    @property
    def gradebook(self) -> Path:
        return self.root / "gradebook.db"

    @property
    def backups(self) -> Path:
        return self.root / "backups"

    @property
    def audit(self) -> Path:
        return self.root / "audit.jsonl"

    @property
    def lock(self) -> Path:
        return self.root / ".grader.lock"

    def students(self, lab: str) -> list[str]:
        """Students with a folder for a lab, empty or not; `InputError` for a folder name that is no valid id."""
        found = sorted(path.parent.name for path in self.root.glob(f"submitted/*/{lab}") if path.is_dir())
        for student in found:
            check_student(student)
        return found

    def labs(self) -> list[str]:
        """Labs with at least one submission."""
        found = {path.name for path in self.root.glob("submitted/*/*") if path.is_dir()}
        return sorted(name for name in found if not name.startswith("."))


def write_stamp(path: Path, time: datetime) -> None:
    """Write a time as nbgrader reads it: in UTC, since it takes an offset of +0100 for a hundred seconds."""
    write_atomically(path, f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC\n".encode())


def read_stamp(path: Path) -> datetime | None:
    """Read nbgrader's timestamp.txt, in UTC to the second; None if it is missing or invalid."""
    try:
        if path.is_symlink():
            return None
        with path.open(encoding="utf-8") as file:
            return parse_stamp(file.read(100))
    except (OSError, ValueError):
        return None


def parse_stamp(text: str) -> datetime | None:
    """Parse a timestamp to UTC, to the second; None for an invalid one.

    UTC is the default, as in nbgrader; a zone may be an offset or a name like Europe/Zurich.
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
    """Return a student's id unchanged; `InputError` for one that no folder or gradebook can hold."""
    if not STUDENT.fullmatch(student):
        raise InputError(
            "not a student id",
            got=repr(student),
            expected="letters, digits and . _ @ -",
            help="rename the folder below submitted/",
        )
    return student
