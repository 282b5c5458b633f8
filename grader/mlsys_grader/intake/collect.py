"""Take in what students handed in: a folder, a zip as an LMS exports it, or a folder of git checkouts.

Only notebooks are taken, under names that the grader makes: no path, link or permission out of an archive reaches
the disk.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path, PurePosixPath

from mlsys_grader.course.folder import STUDENT, Course, read_stamp
from mlsys_grader.course.lock import locked
from mlsys_grader.gradebook.record import write_atomically
from mlsys_grader.intake.submission import FILE_BYTES
from mlsys_lab.errors import InputError

CANVAS = re.compile(r"(?P<name>[^_/]+)_(?:LATE_)?(?P<user>\d+)_\d+_(?P<file>[^/]+\.ipynb)")
MOODLE = re.compile(r"(?P<name>[^_/]+)_(?P<user>\d+)_assignsubmission_[a-z]+_?(?:/|(?P<file>[^/]+\.ipynb)?)")
ARCHIVE_ENTRIES = 100_000


@dataclass(frozen=True)
class Found:
    """A notebook that was handed in. `read` gives at most FILE_BYTES + 1 bytes: what is too large shows as such.

    `handed_in` is in UTC.
    """

    student: str
    file: str
    read: Callable[[], bytes]
    handed_in: datetime | None = None


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
    found, empty, skipped = _look(source)
    if not (found or empty or skipped):
        raise InputError("no notebook found", got=source, help="mlsys-grader collect --help shows what is understood")
    course.lay_out()
    with locked(course, f"collect --lab {lab}"):
        return _take_all(course, lab, found, empty, skipped)


def _take_all(
    course: Course, lab: str, found: list[Found], empty: set[str], skipped: list[tuple[str, str]]
) -> list[Collected]:
    by_student: dict[str, list[Found]] = {}
    for entry in found:
        by_student.setdefault(entry.student, []).append(entry)
    results = [Collected(_printable(name), "skipped", why) for name, why in skipped]
    ids = _ids({*by_student, *empty})
    for raw, student in sorted(ids.items(), key=lambda pair: pair[1]):
        if raw in by_student:
            results.append(_take(course, lab, student, _choose(by_student[raw], lab)))
        else:
            course.submission(student, lab).parent.mkdir(parents=True, exist_ok=True)
            results.append(Collected(student, "missing", "no notebook"))
    return [replace(result, detail=_printable(result.detail)) for result in results]


def _look(source: Path) -> tuple[list[Found], set[str], list[tuple[str, str]]]:
    """Notebooks, students without one, and what was left out with the reason."""
    if source.is_dir():
        checkouts = [path for path in sorted(source.iterdir()) if (path / ".git").exists()]
        if checkouts:
            from mlsys_grader.intake.checkouts import look_in_checkouts

            return look_in_checkouts(checkouts)
        return _look_in_folder(source)
    if source.is_file():
        return _look_in_zip(source)
    raise InputError("nothing to collect", got=source, expected="a folder, a zip, or a folder of git checkouts")


def _look_in_folder(source: Path) -> tuple[list[Found], set[str], list[tuple[str, str]]]:
    found, skipped = [], []
    folders = {path.name for path in source.iterdir() if path.is_dir() and not path.name.startswith(".")}
    for folder, names, files in os.walk(source):
        names[:] = sorted(name for name in names if not name.startswith(".") and name != "__MACOSX")
        for name in sorted(files):
            path = Path(folder, name)
            inside = PurePosixPath(path.relative_to(source).as_posix())
            if not name.endswith(".ipynb") or name.startswith("."):
                continue
            if not stat.S_ISREG(path.lstat().st_mode):
                skipped.append((str(inside), "a link, not a file"))
                continue
            student, file = whose(inside)
            folders.discard(inside.parts[0])
            stamp = read_stamp(path.with_name("timestamp.txt"))
            found.append(Found(student, file, lambda path=path: _read(path), stamp))  # type: ignore[misc]
    return found, {whose(PurePosixPath(name, "x.ipynb"))[0] for name in folders}, skipped


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(FILE_BYTES + 1)


def _look_in_zip(source: Path) -> tuple[list[Found], set[str], list[tuple[str, str]]]:
    try:
        archive = zipfile.ZipFile(source)
    except Exception as error:  # zipfile raises errors of many kinds, UnicodeDecodeError for one
        raise InputError(f"{source} is not a zip archive that can be read", got=_printable(str(error))) from None
    entries = archive.infolist()
    if len(entries) > ARCHIVE_ENTRIES:
        raise InputError(f"{source} holds too many entries", got=len(entries), expected=f"at most {ARCHIVE_ENTRIES}")
    found: list[Found] = []
    skipped: list[tuple[str, str]] = []
    for entry in entries:
        inside = PurePosixPath(entry.filename.replace("\\", "/"))
        if entry.is_dir() or "__MACOSX" in inside.parts or not inside.name.endswith(".ipynb"):
            continue
        if inside.is_absolute() or ".." in inside.parts:
            skipped.append((entry.filename, "its path leads out of the archive"))
        elif stat.S_ISLNK(entry.external_attr >> 16):
            skipped.append((entry.filename, "a link, not a file"))
        elif entry.flag_bits & 1:
            skipped.append((entry.filename, "encrypted"))
        else:
            student, file = whose(inside)
            found.append(Found(student, file, lambda entry=entry: _read_entry(archive, entry)))  # type: ignore[misc]
    return found, set(), skipped


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    try:
        with archive.open(entry) as file:
            return file.read(FILE_BYTES + 1)
    except Exception as error:  # zlib, bz2 and lzma each raise errors of their own
        raise InputError("an entry of the archive is damaged", got=f"{_printable(entry.filename)} ({error})") from None


def whose(path: PurePosixPath) -> tuple[str, str]:
    """Student and file name of a notebook's path in an export: Canvas, Moodle, STUDENT/…/x.ipynb or STUDENT.ipynb.

    >>> whose(PurePosixPath("doejane_LATE_4711_88_01-autograd-1.ipynb"))
    ('doejane-4711', '01-autograd-1.ipynb')
    >>> whose(PurePosixPath("Jane Doe_4711_assignsubmission_file_/01-autograd.ipynb"))
    ('Jane Doe-4711', '01-autograd.ipynb')
    >>> whose(PurePosixPath("jane/work/01-autograd.ipynb"))
    ('jane', '01-autograd.ipynb')
    >>> whose(PurePosixPath("jane_01-autograd.ipynb"))
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


def _choose(found: list[Found], lab: str) -> Found:
    """The one that counts: named after the lab, and of those the last, which LMS and browsers number highest."""
    return max(found, key=lambda entry: (entry.file.startswith(lab), _copy_number(entry.file, lab), entry.file))


def _copy_number(file: str, lab: str) -> int:
    """2 for `01-autograd-2.ipynb` and `01-autograd (2).ipynb`, 0 for the lab's own name, -1 for any other."""
    number = re.fullmatch(r"(?:-(\d+)| \((\d+)\))?\.ipynb", file.removeprefix(lab))
    return int(number[1] or number[2] or 0) if number else -1


def _ids(raw: Iterable[str]) -> dict[str, str]:
    """An id for each name as it came; two names that would share one are told apart by a hash."""
    ids: dict[str, str] = {}
    for name in sorted(raw):
        plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
        student = name if STUDENT.fullmatch(name) else re.sub(r"[^A-Za-z0-9.@-]+", "-", plain).strip("-.@")[:80]
        if not STUDENT.fullmatch(student) or student in ids.values():
            student = f"{student or 'student'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        ids[name] = student
    return ids


def _printable(name: str) -> str:
    """A name out of an archive, without what a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in name)


def _take(course: Course, lab: str, student: str, found: Found) -> Collected:
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


def count(results: Iterable[Collected]) -> Iterator[tuple[str, int]]:
    """How many of each status, in a fixed order, leaving out what did not occur."""
    statuses = [result.status for result in results]
    for status in ("new", "updated", "unchanged", "missing", "skipped"):
        if statuses.count(status):
            yield status, statuses.count(status)
