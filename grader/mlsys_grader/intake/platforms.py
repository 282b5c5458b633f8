"""Identify the student of a file from its path in a platform's export or a folder.

A student controls the end of such a path, so every pattern matches at its beginning, and the first match wins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath

NOTEBOOK = re.compile(r"\.ipynb(?:\.txt|\.json)?$", re.IGNORECASE)
"""End of a notebook's file name: some browsers and platforms append a type."""
NAME_BYTES = 255
"""Longest file or folder name of file systems; archives and Git repositories can hold longer ones."""
DEPTH = 100
"""Maximum folder depth."""
COPY_PREFIX = re.compile(r"^(?:copy of|copia de|copie de|cópia de|kopie von)\s+", re.IGNORECASE)
"""Prefix that Google Drive gives to a copied file."""
CANVAS = re.compile(r"(?P<name>[^_/]+)_(?:LATE_)?(?P<user>\d+)_(?:\d+_(?P<file>[^/]+)|(?:text|link)\.html)$")
MOODLE = re.compile(r"(?P<name>[^/]+?)_(?P<user>\d+)_assignsubmission_[a-z]+_?(?:/|(?P<file>[^/]+)?)")
BLACKBOARD = re.compile(r"[^_/]+_(?P<user>[^/]+?)_attempt_(?P<attempt>\d{4}(?:-\d\d){5})(?:_(?P<file>[^/]+)|\.txt)$")
BRIGHTSPACE = re.compile(
    r"(?P<user>\d+)-\d+ - (?P<name>[^/]+?)"
    r" - (?P<attempt>(?:[^/\d-]*\b\d{1,2}[^/\d-]+\d{4}|\d{4}-\d\d-\d\d)\s\d{3,4}(?:\s[AP]M)?)"
    r"(?:/| - (?P<file>[^/]+)$)"
)
SAKAI = re.compile(
    r"(?P<user>[^/]+\([^()/]+\))/"
    r"(?:Submission attachment\(s\)/(?:.*/)?(?P<file>[^/]+)|Feedback Attachment\(s\)/.*"
    r"|(?:timestamp|comments)\.txt|[^/]*_submissionText\.html)$"
)
MONTHS = (
    "jan|ene|gen", "feb|fev|fév", "mar|mär|mrz|maa", "apr|avr|abr", "may|mai|mei|mag|maj", "jun|juin|giu",
    "jul|juil|lug", "aug|août|ago", "sep|set", "oct|okt|ott|out", "nov", "dec|déc|dez|dic",
)  # fmt: skip
"""How month names begin in the languages of Brightspace's dates."""


@dataclass(frozen=True)
class Owner:
    """A student, the name of the student's file, and the attempt as a text that sorts.

    If a platform numbers its students, `student` is `name` followed by the number. `is_stable`: the number is the
    student's own; Moodle's changes with each assignment.
    """

    student: str
    file: str
    attempt: str = ""
    name: str = ""
    is_stable: bool = True


def identify_student(path: PurePosixPath, lab: str) -> Owner:
    """Tell whose a notebook is from its path: a platform's, STUDENT/…/x.ipynb, STUDENT.ipynb or STUDENT_LAB.ipynb.

    >>> identify_student(PurePosixPath("doejane_LATE_4711_88_01-autograd-1.ipynb"), "01-autograd")
    Owner(student='doejane-4711', file='01-autograd-1.ipynb', attempt='', name='doejane', is_stable=True)
    >>> identify_student(PurePosixPath("Jane Doe_4711_assignsubmission_file_/01-autograd.ipynb"), "01-autograd")
    Owner(student='Jane Doe-4711', file='01-autograd.ipynb', attempt='', name='Jane Doe', is_stable=False)
    >>> identify_student(PurePosixPath("jane/work/01-autograd.ipynb"), "01-autograd").student
    'jane'
    >>> identify_student(PurePosixPath("Jane Doe - 01-autograd (1).ipynb"), "01-autograd").student
    'Jane Doe'
    """
    if (owner := identify_owner(path)) is not None:
        return owner
    stem = NOTEBOOK.sub("", path.name)
    if named := split_at_lab(lab, stem):
        return Owner(named[0], f"{lab}{named[1]}.ipynb")
    return Owner(stem, f"{stem}.ipynb")


def split_at_lab(lab: str, stem: str) -> tuple[str, str] | None:
    """What precedes and follows the lab in `jane_doe_01-autograd (1)` or `Jane Doe - 01-autograd`; None without it.

    >>> split_at_lab("01-autograd", "jane_doe_01-autograd (1)")
    ('jane_doe', ' (1)')
    """
    before, mark, after = stem.rpartition(lab)
    student = before.rstrip(" _-")
    return (student, after) if mark and student and student != before else None


def identify_owner(path: PurePosixPath) -> Owner | None:
    """Identify the owner of any file by a platform's path, or by a folder per student; else None."""
    if (owner := identify_export(path)) is not None:
        return owner
    return Owner(path.parts[0], NOTEBOOK.sub(".ipynb", path.name)) if len(path.parts) > 1 else None


def identify_export(path: PurePosixPath) -> Owner | None:
    """Tell whose a file is from a path as Canvas, Moodle, Blackboard, Brightspace or Sakai have it; else None.

    >>> identify_export(PurePosixPath("Lab%201_jdoe_attempt_2026-11-20-13-45-12_x.ipynb")).student
    'jdoe'
    >>> identify_export(PurePosixPath("7-88 - Jane Doe - Nov 20, 2026 345 PM/x.ipynb")).attempt
    '2026-11-20T15:45:00'
    >>> identify_export(PurePosixPath("Doe, Jane(jdoe)/Submission attachment(s)/x.ipynb")).student
    'Doe, Jane(jdoe)'
    """
    for pattern in (CANVAS, MOODLE, BLACKBOARD, BRIGHTSPACE, SAKAI):
        if match := pattern.match(str(path)):
            found = match.groupdict()
            name = found.get("name") or ""
            student = f"{name}-{found['user']}" if name else found["user"]
            file = NOTEBOOK.sub(".ipynb", found.get("file") or path.name)
            attempt = _as_sortable(found.get("attempt") or "")
            return Owner(student, file, attempt, name, is_stable=pattern is not MOODLE)
    return None


def _as_sortable(attempt: str) -> str:
    """A Brightspace date in one of many languages as a text that sorts by time; other texts unchanged."""
    written = re.fullmatch(r"(?P<date>.*?)\s(?P<hour>\d{1,2})(?P<minute>\d\d)(?:\s(?P<half>[AP])M)?", attempt)
    if written is None:
        return attempt
    numbers = [int(number) for number in re.findall(r"\d+", written["date"])]
    words = [word.casefold() for word in re.findall(r"[^\W\d]+", written["date"])]
    months = [n for n, names in enumerate(MONTHS, start=1) for word in words if re.match(names, word)]
    try:
        year, month, day = numbers if len(numbers) == 3 else (numbers[-1], months[0], numbers[0])
        hour = int(written["hour"]) % (12 if written["half"] else 24) + 12 * (written["half"] == "P")
        return datetime(year, month, day, hour, int(written["minute"])).isoformat()
    except (ValueError, IndexError):
        return attempt


def is_hidden(path: PurePosixPath, *, among: int | None = None) -> bool:
    """Whether a path is hidden (.ipynb_checkpoints, for example), by its first `among` names or all.

    A name with a leading dot belongs to a student if a platform wrote it: ". Priya_4711_assignsubmission_file_".
    """
    is_named = identify_export(path) is not None
    return any(part.startswith(".") or part == "__MACOSX" for part in path.parts[is_named:among])


def is_too_long(path: PurePosixPath) -> bool:
    """Whether a path has names, or a depth, that no file system allows."""
    return len(path.parts) > DEPTH or any(len(part.encode(errors="surrogatepass")) > NAME_BYTES for part in path.parts)


def is_made_by_program(name: str) -> bool:
    """Whether a hidden name is one that programs create, not a submission."""
    return name.startswith(("._", ".ipynb_checkpoints", ".git", ".Trash", ".DS_Store", "__MACOSX"))
