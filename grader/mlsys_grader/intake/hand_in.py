"""A notebook as somebody handed it in, and whose it is by the path that a learning platform gave it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath

CANVAS = re.compile(r"(?P<name>[^_/]+)_(?:LATE_)?(?P<user>\d+)_\d+_(?P<file>[^/]+\.ipynb)")
MOODLE = re.compile(r"(?P<name>[^_/]+)_(?P<user>\d+)_assignsubmission_[a-z]+_?(?:/|(?P<file>[^/]+\.ipynb)?)")


@dataclass(frozen=True)
class HandIn:
    """A notebook that was handed in. `read` gives at most FILE_BYTES + 1 bytes: what is too large shows as such.

    `handed_in` is in UTC.
    """

    student: str
    file: str
    read: Callable[[], bytes]
    handed_in: datetime | None = None


@dataclass
class HandIns:
    """All that a source holds: notebooks, students who handed in none, and paths left out with the reason."""

    notebooks: list[HandIn] = field(default_factory=list)
    without: set[str] = field(default_factory=set)
    left_out: list[tuple[str, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.notebooks or self.without or self.left_out)


def identify_student(path: PurePosixPath) -> tuple[str, str]:
    """Tell student and file name from a notebook's path: Canvas, Moodle, STUDENT/…/x.ipynb or STUDENT.ipynb.

    >>> identify_student(PurePosixPath("doejane_LATE_4711_88_01-autograd-1.ipynb"))
    ('doejane-4711', '01-autograd-1.ipynb')
    >>> identify_student(PurePosixPath("Jane Doe_4711_assignsubmission_file_/01-autograd.ipynb"))
    ('Jane Doe-4711', '01-autograd.ipynb')
    >>> identify_student(PurePosixPath("jane/work/01-autograd.ipynb"))
    ('jane', '01-autograd.ipynb')
    >>> identify_student(PurePosixPath("jane_01-autograd.ipynb"))
    ('jane', '01-autograd.ipynb')
    """
    text = str(path)
    for pattern in (MOODLE, CANVAS):
        if match := pattern.match(text):
            return f"{match['name']}-{match['user']}", match["file"] or path.name
    if len(path.parts) > 1:
        return path.parts[0], path.name
    student, _, file = path.name.removesuffix(".ipynb").partition("_")
    return student, f"{file or student}.ipynb"


def make_printable(name: str) -> str:
    """Replace by `?` what a terminal would obey in a name out of an archive."""
    return "".join(c if c.isprintable() else "?" for c in name)
