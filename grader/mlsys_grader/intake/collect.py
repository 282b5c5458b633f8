"""Take in what students handed in: a folder, a zip as an LMS exports it, or a folder of git checkouts.

Only notebooks are taken, under names that the grader makes: no path, link or permission out of an archive reaches
the disk.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mlsys_grader.course.files import write_atomically
from mlsys_grader.course.folder import STUDENT, Course
from mlsys_grader.course.lock import lock_course
from mlsys_grader.intake.checkouts import look_in_checkouts
from mlsys_grader.intake.exports import look_in_folder, look_in_zip
from mlsys_grader.intake.hand_in import HandIn, HandIns, make_printable
from mlsys_lab.errors import InputError


@dataclass(frozen=True)
class Collected:
    """What became of one student's hand-in: `new`, `updated`, `unchanged`, `missing` or `skipped`, and why."""

    student: str
    status: str
    detail: str = ""


def collect(course: Course, lab: str, source: Path) -> list[Collected]:
    """Copy everybody's notebook for `lab` into the course folder, made if need be; doing it again changes nothing.

    Raises `InputError` when the source is not there, is not a readable archive or holds nothing.
    """
    found = _look(source)
    if not found:
        raise InputError("no notebook found", got=source, help="mlsys-grader collect --help shows what is understood")
    course.lay_out()
    with lock_course(course, f"collect --lab {lab}"):
        return _take_all(course, lab, found)


def _take_all(course: Course, lab: str, found: HandIns) -> list[Collected]:
    by_student: dict[str, list[HandIn]] = {}
    for entry in found.notebooks:
        by_student.setdefault(entry.student, []).append(entry)
    results = [Collected(make_printable(name), "skipped", why) for name, why in found.left_out]
    ids = _assign_ids({*by_student, *found.without})
    for raw, student in sorted(ids.items(), key=lambda pair: pair[1]):
        if raw in by_student:
            results.append(_take(course, lab, student, _choose(by_student[raw], lab)))
        else:
            course.submission(student, lab).parent.mkdir(parents=True, exist_ok=True)
            results.append(Collected(student, "missing", "no notebook"))
    return [replace(result, detail=make_printable(result.detail)) for result in results]


def _look(source: Path) -> HandIns:
    if source.is_dir():
        checkouts = [path for path in sorted(source.iterdir()) if (path / ".git").exists()]
        return look_in_checkouts(checkouts) if checkouts else look_in_folder(source)
    if source.is_file():
        return look_in_zip(source)
    raise InputError("nothing to collect", got=source, expected="a folder, a zip, or a folder of git checkouts")


def _choose(found: list[HandIn], lab: str) -> HandIn:
    """The one that counts: named after the lab, and of those the last, which LMS and browsers number highest."""
    return max(found, key=lambda entry: (entry.file.startswith(lab), _copy_number(entry.file, lab), entry.file))


def _copy_number(file: str, lab: str) -> int:
    """2 for `01-autograd-2.ipynb` and `01-autograd (2).ipynb`, 0 for the lab's own name, -1 for any other."""
    number = re.fullmatch(r"(?:-(\d+)| \((\d+)\))?\.ipynb", file.removeprefix(lab))
    return int(number[1] or number[2] or 0) if number else -1


def _assign_ids(raw: Iterable[str]) -> dict[str, str]:
    """An id for each name as it came; two names that would share one are told apart by a hash."""
    ids: dict[str, str] = {}
    for name in sorted(raw):
        plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
        student = name if STUDENT.fullmatch(name) else re.sub(r"[^A-Za-z0-9.@-]+", "-", plain).strip("-.@")[:80]
        if not STUDENT.fullmatch(student) or student in ids.values():
            student = f"{student or 'student'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        ids[name] = student
    return ids


def _take(course: Course, lab: str, student: str, found: HandIn) -> Collected:
    target = course.submission(student, lab)
    try:
        content = found.read()
    except (InputError, OSError) as error:
        target.parent.mkdir(parents=True, exist_ok=True)
        return Collected(student, "skipped", str(error))
    stamp = target.with_name("timestamp.txt")
    if found.handed_in is not None:
        # In UTC: nbgrader takes an offset like +0100 for a hundred seconds.
        write_atomically(stamp, f"{found.handed_in:%Y-%m-%d %H:%M:%S} UTC\n".encode())
    if target.is_symlink() or not target.exists():
        write_atomically(target, content)
        return Collected(student, "new", found.file)
    if target.read_bytes() == content:
        return Collected(student, "unchanged", found.file)
    if found.handed_in is None:
        stamp.unlink(missing_ok=True)  # the time of what was there before
    write_atomically(target, content)
    return Collected(student, "updated", found.file)


def count_statuses(results: Iterable[Collected]) -> Iterator[tuple[str, int]]:
    """Count hand-ins by status, in a fixed order; a status that did not occur is left out."""
    statuses = [result.status for result in results]
    for status in ("new", "updated", "unchanged", "missing", "skipped"):
        if statuses.count(status):
            yield status, statuses.count(status)
