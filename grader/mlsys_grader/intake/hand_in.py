"""A notebook as somebody handed it in, and whose it is by the path that a learning platform gave it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath

CANVAS = re.compile(r"(?P<name>[^_/]+)_(?:LATE_)?(?P<user>\d+)_\d+_(?P<file>[^/]+)$")
MOODLE = re.compile(r"(?P<name>[^_/]+)_(?P<user>\d+)_assignsubmission_[a-z]+_?(?:/|(?P<file>[^/]+)?)")


@dataclass(frozen=True)
class HandIn:
    """A notebook that was handed in. `read` gives at most FILE_BYTES + 1 bytes: what is too large shows as such.

    `path` is its place in the source. `handed_in` is a time that the platform gave, in UTC. `in_checkout`: it comes out
    of a git checkout; `committed` is the time that the student's git claims.
    """

    student: str
    file: str
    read: Callable[[], bytes]
    path: str
    handed_in: datetime | None = None
    in_checkout: bool = False
    committed: datetime | None = None


@dataclass
class HandIns:
    """All that a source holds: notebooks, everybody of whom there is anything, and paths left out with the reason."""

    notebooks: list[HandIn] = field(default_factory=list)
    students: set[str] = field(default_factory=set)
    left_out: list[tuple[str, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.notebooks or self.students or self.left_out)


def identify_student(path: PurePosixPath, lab: str) -> tuple[str, str]:
    """Tell student and file name from a notebook's path: Canvas, Moodle, STUDENT/…/x.ipynb or STUDENT[_LAB].ipynb.

    >>> identify_student(PurePosixPath("doejane_LATE_4711_88_01-autograd-1.ipynb"), "01-autograd")
    ('doejane-4711', '01-autograd-1.ipynb')
    >>> identify_student(PurePosixPath("Jane Doe_4711_assignsubmission_file_/01-autograd.ipynb"), "01-autograd")
    ('Jane Doe-4711', '01-autograd.ipynb')
    >>> identify_student(PurePosixPath("jane/work/01-autograd.ipynb"), "01-autograd")
    ('jane', '01-autograd.ipynb')
    >>> identify_student(PurePosixPath("jane_doe_01-autograd.ipynb"), "01-autograd")
    ('jane_doe', '01-autograd.ipynb')
    """
    if (owner := identify_owner(path)) is not None:
        return owner
    student, mark, rest = path.name.removesuffix(".ipynb").rpartition(f"_{lab}")
    return (student, f"{lab}{rest}.ipynb") if mark and student else (path.name.removesuffix(".ipynb"), path.name)


def identify_owner(path: PurePosixPath) -> tuple[str, str] | None:
    """Tell student and file name from the path of any file as Canvas, Moodle or a folder each have it; else None."""
    for pattern in (MOODLE, CANVAS):
        if match := pattern.match(str(path)):
            return f"{match['name']}-{match['user']}", match["file"] or path.name
    return (path.parts[0], path.name) if len(path.parts) > 1 else None


def is_aside(path: PurePosixPath) -> bool:
    """Whether a path leads to what a program left behind: a hidden file or folder, .ipynb_checkpoints for one."""
    return any((part.startswith(".") and part != "..") or part == "__MACOSX" for part in path.parts)


def make_printable(name: str) -> str:
    """Replace by `?` what a terminal would obey in a name out of an archive."""
    return "".join(c if c.isprintable() else "?" for c in name)
