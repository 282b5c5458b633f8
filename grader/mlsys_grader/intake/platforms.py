"""Whose a hand-in is, by the path that a learning platform, or a person, gave it.

A student chooses the end of such a path, so every pattern is held against its beginning, and the first to fit decides.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath

NOTEBOOK = re.compile(r"\.ipynb(?:\.txt|\.json)?$", re.IGNORECASE)
"""How a notebook's file name ends: some browsers and platforms add what they take it for."""
CANVAS = re.compile(r"(?P<name>[^_/]+)_(?:LATE_)?(?P<user>\d+)_\d+_(?P<file>[^/]+)$")
MOODLE = re.compile(r"(?P<name>[^/]+?)_(?P<user>\d+)_assignsubmission_[a-z]+_?(?:/|(?P<file>[^/]+)?)")
BLACKBOARD = re.compile(r"[^_/]+_(?P<user>[^/]+?)_attempt_(?P<attempt>\d{4}(?:-\d\d){5})(?:_(?P<file>[^/]+)|\.txt)$")
BRIGHTSPACE = re.compile(
    r"(?P<user>\d+)-\d+ - (?P<name>[^/]+?)"
    r" - (?P<attempt>\w{3,9} \d{1,2}, \d{4} \d{3,4}(?: [AP]M)?|\d{1,2} \w{3,9},? \d{4} \d{3,4})"
    r"(?:/| - (?P<file>[^/]+)$)"
)
DATES = ("%b %d %Y %I%M %p", "%B %d %Y %I%M %p", "%b %d %Y %H%M", "%B %d %Y %H%M", "%d %b %Y %H%M", "%d %B %Y %H%M")
"""Brightspace's, without the comma."""


@dataclass(frozen=True)
class Owner:
    """A student, the name of the student's file, and which of several attempts it is: a text, later ones greater."""

    student: str
    file: str
    attempt: str = ""


def identify_student(path: PurePosixPath, lab: str) -> Owner:
    """Tell whose a notebook is from its path: a platform's, STUDENT/…/x.ipynb or STUDENT[_LAB].ipynb.

    >>> identify_student(PurePosixPath("doejane_LATE_4711_88_01-autograd-1.ipynb"), "01-autograd")
    Owner(student='doejane-4711', file='01-autograd-1.ipynb', attempt='')
    >>> identify_student(PurePosixPath("Jane Doe_4711_assignsubmission_file_/01-autograd.ipynb"), "01-autograd")
    Owner(student='Jane Doe-4711', file='01-autograd.ipynb', attempt='')
    >>> identify_student(PurePosixPath("jane/work/01-autograd.ipynb"), "01-autograd")
    Owner(student='jane', file='01-autograd.ipynb', attempt='')
    >>> identify_student(PurePosixPath("jane_doe_01-autograd.ipynb"), "01-autograd")
    Owner(student='jane_doe', file='01-autograd.ipynb', attempt='')
    """
    if (owner := identify_owner(path)) is not None:
        return owner
    stem = NOTEBOOK.sub("", path.name)
    student, mark, rest = stem.rpartition(f"_{lab}")
    return Owner(student, f"{lab}{rest}.ipynb") if mark and student else Owner(stem, f"{stem}.ipynb")


def identify_owner(path: PurePosixPath) -> Owner | None:
    """Tell whose any file is from the path that a platform or a folder for each student gives it; else None."""
    if (owner := identify_export(path)) is not None:
        return owner
    return Owner(path.parts[0], NOTEBOOK.sub(".ipynb", path.name)) if len(path.parts) > 1 else None


def identify_export(path: PurePosixPath) -> Owner | None:
    """Tell whose a file is from a path as Canvas, Moodle, Blackboard or Brightspace have it; else None.

    >>> identify_export(PurePosixPath("Lab%201_jdoe_attempt_2026-11-20-13-45-12_x.ipynb"))
    Owner(student='jdoe', file='x.ipynb', attempt='2026-11-20-13-45-12')
    >>> identify_export(PurePosixPath("7-88 - Jane Doe - Nov 20, 2026 345 PM/x.ipynb"))
    Owner(student='Jane Doe-7', file='x.ipynb', attempt='2026-11-20T15:45:00')
    """
    for pattern in (CANVAS, MOODLE, BLACKBOARD, BRIGHTSPACE):
        if match := pattern.match(str(path)):
            found = match.groupdict()
            student = f"{found['name']}-{found['user']}" if "name" in found else found["user"]
            file = NOTEBOOK.sub(".ipynb", found.get("file") or path.name)
            return Owner(student, file, _as_sortable(found.get("attempt") or ""))
    return None


def _as_sortable(attempt: str) -> str:
    for form in DATES:
        with suppress(ValueError):
            return datetime.strptime(attempt.replace(",", ""), form).isoformat()
    return attempt


def is_aside(path: PurePosixPath, *, among: int | None = None) -> bool:
    """Whether a path leads to what is hidden, .ipynb_checkpoints for one; by its first names only, `among` so many.

    A name that begins with a dot is a student's where a platform gave it: ". Priya_4711_assignsubmission_file_".
    """
    is_named = identify_export(path) is not None
    return any(part.startswith(".") or part == "__MACOSX" for part in path.parts[is_named:among])


def is_left_behind(name: str) -> bool:
    """Whether a hidden name is one that programs give, so that nobody handed it in."""
    return name.startswith(("._", ".ipynb_checkpoints", ".git", ".Trash", ".DS_Store", "__MACOSX"))
