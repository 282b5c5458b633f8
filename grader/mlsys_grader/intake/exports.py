"""Find notebooks in a folder or zip exported by a learning platform. No path or link of it reaches the disk."""

from __future__ import annotations

import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path, PurePosixPath

from mlsys_grader.course.folder import parse_stamp
from mlsys_grader.intake.bounded import run_bounded
from mlsys_grader.intake.found import (
    MAX_ENTRIES,
    MAX_PROBED,
    FoundNotebook,
    FoundSubmissions,
    compose,
    make_printable,
    mentions_lab,
)
from mlsys_grader.intake.gradescope import METADATA_BYTES, GradescopeSubmission, find_metadata, read_submitted
from mlsys_grader.intake.nofollow import LINK, open_below, read_below
from mlsys_grader.intake.platforms import (
    COPY_PREFIX,
    NOTEBOOK,
    identify_export,
    identify_owner,
    identify_student,
    is_hidden,
    is_made_by_program,
    is_too_long,
    split_at_lab,
)
from mlsys_grader.intake.submission import MAX_FILE_BYTES
from mlsys_lab.errors import InputError

STAMP, STAMP_BYTES = "timestamp.txt", 100
SHOWN = 100
"""Characters shown of a path that is too long."""
UTF_8 = 0x800
"""Flag bit of a zip entry that says how its name is encoded."""


@dataclass(frozen=True)
class _Entry:
    """A file or folder of a source: its path, a function that reads a number of bytes, and why not to read it.

    `time` is when the platform received it, as text, if the platform says; otherwise a timestamp.txt may be next to it.
    """

    path: PurePosixPath
    read: Callable[[int], bytes]
    is_folder: bool = False
    refusal: str = ""
    time: str | None = None


def find_in_folder(source: Path, lab: str) -> FoundSubmissions:
    """Find notebooks below a folder, with the times in nbgrader's timestamp.txt next to them."""
    return _sort(list(_walk(source)), lab)


def find_in_zip(source: Path, lab: str) -> FoundSubmissions:
    """Find notebooks in an archive; each is read on demand. Raises `InputError` for an unreadable archive."""
    source = source.absolute()
    listed = run_bounded(list_archive, source)
    return _sort(
        [
            _Entry(
                PurePosixPath(compose(name).replace("\\", "/")),
                partial(run_bounded, read_archived, source, number),
                is_folder,
                refusal,
            )
            for number, (name, is_folder, refusal) in enumerate(listed)
        ],
        lab,
    )


def list_archive(source: Path) -> list[tuple[str, bool, str]]:
    """Name of each archive entry, whether it is a folder, and why it cannot be read, or ""."""
    try:
        entries = _open_archive(source, source.stat().st_mtime_ns).infolist()
    except Exception as error:  # zipfile raises many kinds of errors, such as UnicodeDecodeError
        raise InputError(
            f"{source} is not a zip archive that can be read",
            got=make_printable(str(error)),
            help="give the folder that it lies in"
            if NOTEBOOK.search(source.name)
            else "unpack it, and give the folder",
        ) from None
    if len(entries) > MAX_ENTRIES:
        help = "unpack it and give the folder: there, too many files of one student do not stop the others"
        raise InputError(
            f"{source} holds too many entries", got=len(entries), expected=f"at most {MAX_ENTRIES}", help=help
        )
    return [(_name_of(entry), entry.is_dir(), _refuse(entry)) for entry in entries]


def read_archived(source: Path, number: int, size: int) -> bytes:
    """Read at most `size` bytes of an entry by its number."""
    archive = _open_archive(source, source.stat().st_mtime_ns)
    entry = archive.infolist()[number]
    try:
        with archive.open(entry) as file:
            return file.read(size)
    except Exception as error:  # zlib, bz2 and lzma raise errors of their own
        raise InputError(
            "an entry of the archive is damaged", got=f"{make_printable(entry.filename)} ({error})"
        ) from None


@lru_cache(maxsize=1)
def _open_archive(source: Path, changed: int) -> zipfile.ZipFile:
    """Open an archive as of its last change; the worker caches it for the next entry."""
    return zipfile.ZipFile(source)


def _refuse(entry: zipfile.ZipInfo) -> str:
    if stat.S_ISLNK(entry.external_attr >> 16):
        return LINK
    return "encrypted" if entry.flag_bits & 1 else ""


def _sort(entries: list[_Entry], lab: str) -> FoundSubmissions:
    """Sort the entries of a source by student and kind."""
    found = FoundSubmissions()
    entries = _name_submitters(list(_leave_out(entries, found)), found)
    found.lone_folder, found.lab_folder = _find_lone_folder(entries, lab), _find_lab_folder(entries, lab)
    stamps = {entry.path.parent: entry for entry in entries if entry.path.name == STAMP and not entry.refusal}
    for entry in entries:
        path = entry.path
        is_notebook = not entry.is_folder and NOTEBOOK.search(path.name) is not None
        if path.is_absolute() or ".." in path.parts:
            if is_notebook:
                found.left_out.append((str(path), "its path leads out of the archive"))
            continue
        if not path.parts or is_hidden(path, among=1):
            if is_notebook and not any(map(is_made_by_program, path.parts)):
                found.left_out.append((str(path), "its name begins with a dot"))
            continue
        owner = identify_owner(path / "x" if entry.is_folder else path)
        if owner is not None:
            found.students.add(owner.student)
            if owner.name:
                found.numbered[owner.student] = owner.name, owner.is_stable
        if entry.is_folder or is_hidden(path) or path.name == STAMP:
            continue
        if not is_notebook:
            found.others.setdefault(owner.student if owner is not None else "", []).append(path.name)
        elif entry.refusal or (owner is None and COPY_PREFIX.sub("", path.name).startswith(lab)):
            nobodys = f"it names no student: call it STUDENT_{lab}.ipynb"
            found.left_out.append((str(path), entry.refusal or nobodys))
        else:
            whose, read = identify_student(path, lab), partial(entry.read, MAX_FILE_BYTES + 1)
            # In a platform's export a timestamp.txt would come from the student.
            is_export = entry.time is not None or identify_export(path) is not None
            stamp = None if is_export else stamps.get(path.parent)
            written = _read_stamp(stamp) if stamp is not None else entry.time or ""
            time = parse_stamp(written)
            invalid_time = written if time is None else ""
            notebook = FoundNotebook(
                whose.student, whose.file, read, str(path), whose.attempt, time, invalid_time=invalid_time
            )
            found.notebooks.append(notebook)
    return found


def _leave_out(entries: list[_Entry], found: FoundSubmissions) -> Iterator[_Entry]:
    """Entries without unreadable folders and overlong names."""
    for entry in entries:
        if entry.is_folder and entry.refusal:
            found.left_out.append((str(entry.path), entry.refusal))
        elif not is_too_long(entry.path):
            yield entry
        elif NOTEBOOK.search(entry.path.name):
            found.left_out.append((f"{str(entry.path)[:SHOWN]}…", "its path is too long"))


def _name_submitters(entries: list[_Entry], found: FoundSubmissions) -> list[_Entry]:
    """Rename the entries of a Gradescope export after its submitters, once for each; leave others as they are.

    A notebook's time is when Gradescope received it.
    """
    metadata = find_metadata([entry.path for entry in entries])
    if metadata is None:
        return entries
    *_, file = (entry for entry in entries if entry.path == metadata)
    home, named, submitted = metadata.parent, list[_Entry](), dict[str, GradescopeSubmission]()
    try:
        submitted = read_submitted(_read_whole(file))
    except InputError as error:
        found.left_out.append((str(metadata), str(error)))
    for entry in entries:
        inner = entry.path.relative_to(home) if entry.path.is_relative_to(home) else entry.path
        if submitted and inner.parts and inner.parts[0] in submitted:
            whose = submitted[inner.parts[0]]
            named += [
                replace(entry, path=PurePosixPath(student, *inner.parts[1:]), time=whose.time)
                for student in whose.students
            ]
        elif entry.path != metadata:
            named.append(replace(entry, path=inner) if submitted else entry)
    return named


def _read_whole(entry: _Entry) -> bytes:
    try:
        return b"" if entry.refusal else entry.read(METADATA_BYTES)
    except (InputError, OSError):
        return b""


def _find_lab_folder(entries: list[_Entry], lab: str) -> str:
    """The top folder named after the lab, so not after a student; else ""."""
    copy = re.compile(rf"{re.escape(lab)}(?: ?\(\d+\)|-\d+)?")
    top = {entry.path.parts[0] for entry in entries if len(entry.path.parts) > 1 and not is_hidden(entry.path)}
    return next((name for name in sorted(top) if copy.fullmatch(name)), "")


def _find_lone_folder(entries: list[_Entry], lab: str) -> str:
    """The single top folder, if what is below it looks like a class's submissions; else ""."""
    files = [entry for entry in entries if not (entry.is_folder or is_hidden(entry.path))]
    if len({entry.path.parts[0] for entry in files}) != 1 or any(len(entry.path.parts) < 2 for entry in files):
        return ""
    if any(identify_export(entry.path) is not None for entry in files):
        return ""
    (top,) = {entry.path.parts[0] for entry in files}
    below = {entry.path.relative_to(top): entry for entry in files if NOTEBOOK.search(entry.path.name)}
    flat = [path for path in below if len(path.parts) == 1]
    if any(path.name.startswith(lab) for path in flat):
        return ""
    told = [path for path in below if identify_owner(path) is not None or split_at_lab(lab, path.stem)]
    if len({identify_student(path, lab).student for path in told}) > 1:
        return top
    # Notebooks of any name: more than one of this lab means more than one student.
    readable = [below[path] for path in flat[:MAX_PROBED] if not below[path].refusal]
    of_lab = (entry for entry in readable if mentions_lab(lab, partial(entry.read, MAX_FILE_BYTES)))
    return top if len(list(islice(of_lab, 2))) > 1 else ""


def _walk(source: Path) -> Iterator[_Entry]:
    listed = _list_folder(source, ())
    if len(listed) > MAX_ENTRIES:
        raise InputError(f"{source} holds too many entries", expected=f"at most {MAX_ENTRIES}")
    for entry, names in listed:
        below = list(islice(_walk_below(source, names), MAX_ENTRIES + 1)) if entry.is_folder else []
        if len(below) > MAX_ENTRIES:
            entry, below = replace(entry, refusal=f"it holds more than {MAX_ENTRIES:,} files and folders"), []
        yield entry
        yield from below


def _walk_below(source: Path, names: tuple[str, ...]) -> Iterator[_Entry]:
    folders = [names]
    while folders:
        listed = _list_folder(source, folders.pop())
        yield from (entry for entry, _ in listed)
        folders += [inner for entry, inner in reversed(listed) if entry.is_folder and not is_too_long(entry.path)]


def _list_folder(source: Path, names: tuple[str, ...]) -> list[tuple[_Entry, tuple[str, ...]]]:
    """Entries of a folder with their path below the source; nothing if it is unreadable.

    At most one entry more than MAX_ENTRIES.
    """
    try:
        descriptor = open_below(source, names, os.O_DIRECTORY)
    except OSError:
        return []
    try:
        with os.scandir(descriptor) as scan:
            listed = sorted(
                (one.name, one.is_dir(follow_symlinks=False), one.is_file(follow_symlinks=False))
                for one in islice(scan, MAX_ENTRIES + 1)
            )
    finally:
        os.close(descriptor)
    found = []
    for name, is_folder, is_file in listed:
        if not (is_folder and is_made_by_program(name)):
            inner = (*names, name)
            path = PurePosixPath(*map(compose, inner))
            refusal = "" if is_folder or is_file else LINK
            found.append((_Entry(path, partial(read_below, source, inner), is_folder, refusal), inner))
    return found


def _name_of(entry: zipfile.ZipInfo) -> str:
    """Name of a zip entry; macOS writes UTF-8 without the flag."""
    if entry.flag_bits & UTF_8:
        return entry.filename
    try:
        return entry.filename.encode("cp437").decode()
    except UnicodeError:
        return entry.filename


def _read_stamp(entry: _Entry) -> str:
    try:
        return entry.read(STAMP_BYTES).decode(errors="replace").strip()
    except (InputError, OSError):
        return ""
