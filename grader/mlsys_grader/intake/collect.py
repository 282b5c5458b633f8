"""Take in what students handed in: a folder, a zip as an LMS exports it, or a folder of git checkouts.

Only notebooks are taken, under names that the grader makes: no path, link or permission out of an archive reaches
the disk.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType

from mlsys_grader.course.files import write_atomically
from mlsys_grader.course.folder import Course, read_stamp, write_stamp
from mlsys_grader.course.lock import lock_course
from mlsys_grader.intake.checkouts import look_in_checkouts
from mlsys_grader.intake.exports import look_in_folder, look_in_zip
from mlsys_grader.intake.hand_in import (
    LOOKED_INTO,
    NOTEBOOKS,
    HandIn,
    HandIns,
    calls_up,
    compose,
    make_printable,
    name_some,
)
from mlsys_grader.intake.platforms import NOTEBOOK
from mlsys_grader.intake.roster import assign_ids, explain_unclear, read_roster
from mlsys_lab.errors import InputError

STATUSES = ("new", "updated", "unchanged", "missing", "skipped", "unclear", "aside")
SHOWN = "%Y-%m-%d %H:%M:%S UTC"
SLACK = timedelta(days=1)
"""How far ahead of this machine's clock a time may lie that a platform gives."""
RECEIPT, COMMIT = "receipt", "commit"
"""Which time of a git checkout penalties go by: when `collect` first saw the notebook, or what the commit claims."""


@dataclass(frozen=True)
class Collected:
    """What became of one student's hand-in: one of `STATUSES`, why, and what a person should know beside that.

    Of "aside" nobody can tell whose it is: files that are no notebooks, beside those of the students.
    """

    student: str
    status: str
    detail: str = ""
    remark: str = ""


def collect(
    course: Course,
    lab: str,
    source: Path,
    *,
    settled: Mapping[str, str] = MappingProxyType({}),
    time: str = RECEIPT,
) -> list[Collected]:
    """Copy everybody's notebook for `lab` into the course folder, made if need be; doing it again changes nothing.

    settled: the ids of names, as a person decided. time: RECEIPT or COMMIT. Raises `InputError` when the source is not
    there, is not a readable archive or holds nothing.
    """
    found = _look(source, lab)
    if not found:
        files = name_some(found.others.get("", []))
        got = f"{source}, which holds {files}" if files else source
        raise InputError("no notebook found", got=got, help="mlsys-grader collect --help shows what is understood")
    course.lay_out()
    settled = {compose(name): student for name, student in settled.items()}
    known = {*settled, *read_roster(course), *course.students(lab)}
    _refuse_class_as_student("everything lies in one folder", found.lone_folder, known)
    _refuse_class_as_student("a folder is named after the lab, not after a student", found.lab_folder, known)
    with lock_course(course, f"collect --lab {lab}"):
        return _take_all(course, lab, found, settled, time)


def _refuse_class_as_student(what: str, folder: str, known: Collection[str]) -> None:
    if folder and folder not in known:
        expected = "the folder that holds one for each student"
        unpacked = f"collect `{folder}` itself (of a zip: unpacked)"
        one = f'--who "{folder}=STUDENT" if one student handed all of it in'
        raise InputError(what, got=folder, expected=expected, help=f"{unpacked}, or {one}")


def _take_all(course: Course, lab: str, found: HandIns, settled: Mapping[str, str], time: str) -> list[Collected]:
    names = {entry.student for entry in found.notebooks} | found.students
    assigned = assign_ids(course, lab, names, settled, found.numbered)
    handed_in: dict[str, list[HandIn]] = {assigned.ids[name]: [] for name in assigned.ids}
    for entry in found.notebooks:
        if entry.student in assigned.ids:
            handed_in[assigned.ids[entry.student]].append(entry)
    remarks = {
        assigned.ids[name]: f"taken as {assigned.ids[name]}: {explain_unclear(name, other, assigned.ids[other])}"
        for name, other in assigned.apart.items()
    }
    results = [Collected(make_printable(name), "skipped", why) for name, why in found.left_out]
    results += [
        Collected(make_printable(name), "unclear", explain_unclear(name, other, student))
        for name, (other, student) in sorted(assigned.unclear.items())
    ]
    for student, entries in sorted(handed_in.items()):
        if len(entries) > NOTEBOOKS:
            result, said = Collected(student, "skipped", f"more than {NOTEBOOKS:,} notebooks: {len(entries):,}"), []
        elif entries:
            taken = _choose(entries, lab)
            result = _take(course, lab, student, taken, time)
            others = name_some([entry.path for entry in entries if entry is not taken])
            said = [f"took `{make_printable(taken.path)}`, not {others}"] if others else []
        else:
            course.submission(student, lab).parent.mkdir(parents=True, exist_ok=True)
            whose = [name for name in assigned.ids if assigned.ids[name] == student]
            files = name_some([file for name in whose for file in found.others.get(name, [])])
            result, said = Collected(student, "missing", f"no notebook{files and f', only {files}'}"), []
        said = [*said, result.remark, remarks.get(student, "")]
        results.append(replace(result, remark="; ".join(filter(None, said))))
    if beside := found.others.get(""):
        results.append(Collected("", "aside", name_some(beside)))
    return [replace(result, detail=make_printable(result.detail)) for result in results]


def _look(source: Path, lab: str) -> HandIns:
    if source.is_dir():
        everything = [path for path in sorted(source.iterdir()) if not path.name.startswith(".")]
        checkouts = [path for path in everything if (path / ".git").exists()]
        if not checkouts:
            return look_in_folder(source, lab)
        found, why = look_in_checkouts(checkouts), "it lies beside git checkouts and is none"
        beside = [path for path in everything if path not in checkouts]
        found.left_out += [(path.name, why) for path in beside if path.is_dir() or NOTEBOOK.search(path.name)]
        return found
    if source.is_file():
        return look_in_zip(source, lab)
    raise InputError("nothing to collect", got=source, expected="a folder, a zip, or a folder of git checkouts")


def _choose(found: list[HandIn], lab: str) -> HandIn:
    """The one that counts: of the last attempt, named after the lab, or else of the lab by its content.

    Of several of those the last, which LMS and browsers number highest.
    """
    are_named = any(entry.file.startswith(lab) for entry in found)

    def rank(place: int) -> tuple[str, bool, int, bool, int, str, int]:
        entry = found[place]
        is_called = not are_named and 1 < len(found) <= LOOKED_INTO and calls_up(lab, entry.read)
        named = entry.file.startswith(lab), _copy_number(entry.file, lab)
        return entry.attempt, *named, is_called, -entry.path.count("/"), entry.file, place

    return found[max(range(len(found)), key=rank)]


def _copy_number(file: str, lab: str) -> int:
    """2 for `01-autograd-2.ipynb`, `01-autograd (2).ipynb`, or without the blank; 0 for the lab's own name, else -1.

    No browser counts to numbers of more than nine digits.
    """
    number = re.fullmatch(r"(?:-(\d{1,9})| ?\((\d{1,9})\))?\.ipynb", file.removeprefix(lab))
    return int(number[1] or number[2] or 0) if number else -1


def _take(course: Course, lab: str, student: str, found: HandIn, time: str) -> Collected:
    target = course.submission(student, lab)
    try:
        content = found.read()
    except (InputError, OSError) as error:
        target.parent.mkdir(parents=True, exist_ok=True)
        return Collected(student, "skipped", str(error))
    known = course.handed_in(student, lab) if target.exists() else None
    if known is not None and found.handed_in is not None and found.handed_in < known:
        earlier = f"handed in {found.handed_in:{SHOWN}}, before what is there ({known:{SHOWN}}), which stays"
        return Collected(student, "unchanged", found.file, earlier)
    if target.is_symlink() or not target.exists():
        status = "new"
    else:
        status = "unchanged" if target.read_bytes() == content else "updated"
    remark = _stamp(target.parent, found, time, is_known=status == "unchanged")
    if status != "unchanged":
        write_atomically(target, content)
    return Collected(student, status, found.file, remark)


def _stamp(folder: Path, found: HandIn, time: str, *, is_known: bool) -> str:
    """Write when a notebook was handed in, where that is known; of a git checkout both times, which are told."""
    stamp, received, committed = (folder / f"{name}.txt" for name in ("timestamp", "received", "committed"))
    if not is_known:
        for path in (stamp, received, committed):
            path.unlink(missing_ok=True)  # the times of what was there before
    if found.handed_in is not None:
        write_stamp(stamp, found.handed_in)
    if not found.in_checkout:
        if found.odd_time:
            return f"no time that can be read, so no penalty: got `{make_printable(found.odd_time)}` in timestamp.txt"
        is_ahead = found.handed_in is not None and found.handed_in > datetime.now(UTC) + SLACK
        return f"handed in {found.handed_in:{SHOWN}}, which is yet to come" if is_ahead else ""
    receipt = read_stamp(received) or datetime.now(UTC)
    write_stamp(received, receipt)
    claimed = found.find_commit_time()
    if claimed is not None:
        write_stamp(committed, claimed)
    write_stamp(stamp, claimed if time == COMMIT and claimed is not None else receipt)
    claim = f"{claimed:{SHOWN}}" if claimed is not None else "at no time that there is"
    return f"received {receipt:{SHOWN}}, committed {claim} by the student's clock"


def count_statuses(results: Iterable[Collected]) -> Iterator[tuple[str, int]]:
    """Count hand-ins by status, in a fixed order; a status that did not occur is left out."""
    statuses = [result.status for result in results]
    for status in STATUSES:
        if statuses.count(status):
            yield status, statuses.count(status)
