"""Notebooks out of a folder or a zip, as learning platforms export them. No path or link out of it reaches the disk."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path, PurePosixPath

from mlsys_grader.course.folder import read_stamp
from mlsys_grader.intake.hand_in import HandIn, HandIns, identify_owner, identify_student, is_aside, make_printable
from mlsys_grader.intake.submission import FILE_BYTES
from mlsys_lab.errors import InputError

ARCHIVE_ENTRIES = 100_000


def look_in_folder(source: Path, lab: str) -> HandIns:
    """Notebooks below a folder, with the times in nbgrader's timestamp.txt beside them."""
    found = HandIns()
    for path in source.iterdir():
        _note_owner(found, PurePosixPath(path.name, "x") if path.is_dir() else PurePosixPath(path.name))
    for folder, names, files in os.walk(source):
        names[:] = sorted(name for name in names if not is_aside(PurePosixPath(name)))
        for name in sorted(files):
            path = Path(folder, name)
            inside = PurePosixPath(path.relative_to(source).as_posix())
            if not name.endswith(".ipynb") or is_aside(inside):
                continue
            if not stat.S_ISREG(path.lstat().st_mode):
                found.left_out.append((str(inside), "a link, not a file"))
                continue
            student, file = identify_student(inside, lab)
            stamp = read_stamp(path.with_name("timestamp.txt"))
            found.notebooks.append(HandIn(student, file, lambda path=path: _read(path), str(inside), stamp))  # type: ignore[misc]
    return found


def _note_owner(found: HandIns, inside: PurePosixPath) -> None:
    """Note whose a file is, whatever it is: who has no notebook is known then."""
    if not is_aside(PurePosixPath(*inside.parts[:1])) and (owner := identify_owner(inside)) is not None:
        found.students.add(owner[0])


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(FILE_BYTES + 1)


def look_in_zip(source: Path, lab: str) -> HandIns:
    """Notebooks in an archive; each is read when it is asked for. Raises `InputError` for one that cannot be read."""
    try:
        archive = zipfile.ZipFile(source)
    except Exception as error:  # zipfile raises errors of many kinds, UnicodeDecodeError for one
        raise InputError(f"{source} is not a zip archive that can be read", got=make_printable(str(error))) from None
    entries = archive.infolist()
    if len(entries) > ARCHIVE_ENTRIES:
        raise InputError(f"{source} holds too many entries", got=len(entries), expected=f"at most {ARCHIVE_ENTRIES}")
    found = HandIns()
    for entry in entries:
        inside = PurePosixPath(entry.filename.replace("\\", "/"))
        leads_out = inside.is_absolute() or ".." in inside.parts
        if not leads_out:
            _note_owner(found, inside / "x" if entry.is_dir() else inside)
        if entry.is_dir() or is_aside(inside) or not inside.name.endswith(".ipynb"):
            continue
        if leads_out:
            found.left_out.append((entry.filename, "its path leads out of the archive"))
        elif stat.S_ISLNK(entry.external_attr >> 16):
            found.left_out.append((entry.filename, "a link, not a file"))
        elif entry.flag_bits & 1:
            found.left_out.append((entry.filename, "encrypted"))
        else:
            student, file = identify_student(inside, lab)
            found.notebooks.append(
                HandIn(student, file, lambda entry=entry: _read_entry(archive, entry), str(inside))  # type: ignore[misc]
            )
    return found


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    try:
        with archive.open(entry) as file:
            return file.read(FILE_BYTES + 1)
    except Exception as error:  # zlib, bz2 and lzma each raise errors of their own
        raise InputError(
            "an entry of the archive is damaged", got=f"{make_printable(entry.filename)} ({error})"
        ) from None
