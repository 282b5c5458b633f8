"""Notebooks out of a folder or a zip, as learning platforms export them. No path or link out of it reaches the disk."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path, PurePosixPath

from mlsys_grader.course.folder import parse_stamp
from mlsys_grader.intake.hand_in import HandIn, HandIns, make_printable
from mlsys_grader.intake.platforms import (
    NOTEBOOK,
    identify_export,
    identify_owner,
    identify_student,
    is_aside,
    is_left_behind,
)
from mlsys_grader.intake.submission import FILE_BYTES
from mlsys_lab.errors import InputError

ARCHIVE_ENTRIES = 100_000
STAMP, STAMP_BYTES = "timestamp.txt", 100
UTF_8 = 0x800
"""The bit of an entry's flags that says how its name is written."""


@dataclass(frozen=True)
class _Entry:
    """One file or folder of a source: its path there, how to read so many bytes of it, and why not to."""

    path: PurePosixPath
    read: Callable[[int], bytes]
    is_folder: bool = False
    refusal: str = ""


def look_in_folder(source: Path, lab: str) -> HandIns:
    """Notebooks below a folder, with the times in nbgrader's timestamp.txt beside them."""
    return _sort(list(_walk(source)), lab)


def look_in_zip(source: Path, lab: str) -> HandIns:
    """Notebooks in an archive; each is read when it is asked for. Raises `InputError` for one that cannot be read."""
    try:
        archive = zipfile.ZipFile(source)
    except Exception as error:  # zipfile raises errors of many kinds, UnicodeDecodeError for one
        raise InputError(
            f"{source} is not a zip archive that can be read",
            got=make_printable(str(error)),
            help="unpack it, and give the folder",
        ) from None
    entries = archive.infolist()
    if len(entries) > ARCHIVE_ENTRIES:
        raise InputError(f"{source} holds too many entries", got=len(entries), expected=f"at most {ARCHIVE_ENTRIES}")
    return _sort([_entry_of(archive, entry) for entry in entries], lab)


def _sort(entries: list[_Entry], lab: str) -> HandIns:
    """Sort what a source holds by whose it is and what it is."""
    found = HandIns(lone_folder=_find_lone_folder(entries, lab))
    stamps = {entry.path.parent: entry for entry in entries if entry.path.name == STAMP and not entry.refusal}
    for entry in entries:
        path = entry.path
        is_notebook = not entry.is_folder and NOTEBOOK.search(path.name) is not None
        if path.is_absolute() or ".." in path.parts:
            if is_notebook:
                found.left_out.append((str(path), "its path leads out of the archive"))
            continue
        if not path.parts or is_aside(path, among=1):
            if is_notebook and not any(map(is_left_behind, path.parts)):
                found.left_out.append((str(path), "its name begins with a dot"))
            continue
        owner = identify_owner(path / "x" if entry.is_folder else path)
        if owner is not None:
            found.students.add(owner.student)
        if entry.is_folder or is_aside(path) or path.name == STAMP:
            continue
        if not is_notebook:
            found.others.setdefault(owner.student if owner is not None else "", []).append(path.name)
        elif entry.refusal or (owner is None and path.name.startswith(lab)):
            found.left_out.append((str(path), entry.refusal or "it names no student"))
        else:
            whose, read = identify_student(path, lab), partial(entry.read, FILE_BYTES + 1)
            # A platform's export holds what the student put there: a time, too, would be the student's own.
            stamp = None if identify_export(path) is not None else stamps.get(path.parent)
            handed_in = _read_stamp(stamp) if stamp is not None else None
            found.notebooks.append(HandIn(whose.student, whose.file, read, str(path), whose.attempt, handed_in))
    return found


def _find_lone_folder(entries: list[_Entry], lab: str) -> str:
    """The one folder that everything lies in, where what is below it looks like the hand-ins of a class; else ""."""
    paths = [entry.path for entry in entries if not (entry.is_folder or is_aside(entry.path))]
    if len({path.parts[0] for path in paths}) != 1 or any(len(path.parts) < 2 for path in paths):
        return ""
    if any(identify_export(path) is not None for path in paths):
        return ""
    below = [path.relative_to(path.parts[0]) for path in paths if NOTEBOOK.search(path.name)]
    if any(len(path.parts) == 1 and path.name.startswith(lab) for path in below):
        return ""
    told = [path for path in below if identify_owner(path) is not None or f"_{lab}" in path.name]
    students = {identify_student(path, lab).student for path in told}
    return paths[0].parts[0] if len(students) > 1 else ""


def _walk(source: Path) -> Iterator[_Entry]:
    for folder, names, files in os.walk(source):
        here = PurePosixPath(Path(folder).relative_to(source).as_posix())
        names[:] = sorted(name for name in names if not is_left_behind(name))
        yield from (_Entry(here / name, lambda most: b"", is_folder=True) for name in names)
        for name in sorted(files):
            path = Path(folder, name)
            is_file = stat.S_ISREG(path.lstat().st_mode)
            yield _Entry(here / name, partial(_read, path), refusal="" if is_file else "a link, not a file")


def _read(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        return file.read(most)


def _entry_of(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> _Entry:
    path = PurePosixPath(_name_of(entry).replace("\\", "/"))
    refusal = "encrypted" if entry.flag_bits & 1 else ""
    if stat.S_ISLNK(entry.external_attr >> 16):
        refusal = "a link, not a file"
    return _Entry(path, partial(_read_entry, archive, entry), entry.is_dir(), refusal)


def _name_of(entry: zipfile.ZipInfo) -> str:
    """The name of an entry; macOS writes it in UTF-8 and does not say so."""
    if entry.flag_bits & UTF_8:
        return entry.filename
    try:
        return entry.filename.encode("cp437").decode()
    except UnicodeError:
        return entry.filename


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes:
    try:
        with archive.open(entry) as file:
            return file.read(most)
    except Exception as error:  # zlib, bz2 and lzma each raise errors of their own
        raise InputError(
            "an entry of the archive is damaged", got=f"{make_printable(entry.filename)} ({error})"
        ) from None


def _read_stamp(entry: _Entry) -> datetime | None:
    try:
        return parse_stamp(entry.read(STAMP_BYTES).decode(errors="replace"))
    except (InputError, OSError):
        return None
