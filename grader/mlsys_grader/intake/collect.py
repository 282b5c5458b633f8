"""Collect submissions from a folder, an LMS export as a zip, or a folder of git checkouts.

Only notebooks are taken, under names that the grader makes: no path, link or permission of an archive reaches the disk.
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
from mlsys_grader.intake.checkouts import find_in_checkouts
from mlsys_grader.intake.exports import find_in_folder, find_in_zip
from mlsys_grader.intake.found import (
    MAX_CANDIDATES,
    MAX_NOTEBOOKS,
    FoundNotebook,
    FoundSubmissions,
    compose,
    list_some,
    make_printable,
    mentions_lab,
    names_other_lab,
)
from mlsys_grader.intake.platforms import NOTEBOOK
from mlsys_grader.intake.roster import assign_ids, explain_unclear, read_roster
from mlsys_lab.errors import InputError

STATUSES = ("new", "updated", "unchanged", "missing", "skipped", "unclear", "aside")
SHOWN = "%Y-%m-%d %H:%M:%S UTC"
SLACK = timedelta(days=1)
"""How far a platform's time may be ahead of this machine's clock."""
RECEIPT, COMMIT = "receipt", "commit"
"""Submission time of a git checkout: when `collect` first saw the notebook, or the commit's own time."""


@dataclass(frozen=True)
class Collected:
    """Result for one student: one of `STATUSES`, the reason, and a remark for the instructor.

    "aside" are files that are no notebooks and belong to no known student. Without a time (`has_time` is False) nothing
    that was taken counts as late.
    """

    student: str
    status: str
    detail: str = ""
    remark: str = ""
    has_time: bool = True


def collect(
    course: Course,
    lab: str,
    source: Path,
    *,
    settled: Mapping[str, str] = MappingProxyType({}),
    time: str = RECEIPT,
) -> list[Collected]:
    """Copy all notebooks for `lab` into the course folder, created if needed; repeating it changes nothing.

    settled: ids of names, as decided by the instructor. time: RECEIPT or COMMIT. Raises `InputError` if the source is
    missing, unreadable or empty.
    """
    found = _look(source, lab)
    if not found:
        files = list_some(found.others.get("", []))
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


def _take_all(
    course: Course, lab: str, found: FoundSubmissions, settled: Mapping[str, str], time: str
) -> list[Collected]:
    names = {entry.student for entry in found.notebooks} | found.students
    assigned = assign_ids(course, lab, names, settled, found.numbered)
    by_student: dict[str, list[FoundNotebook]] = {assigned.ids[name]: [] for name in assigned.ids}
    for entry in found.notebooks:
        if entry.student in assigned.ids:
            by_student[assigned.ids[entry.student]].append(entry)
    remarks = {
        assigned.ids[name]: f"taken as {assigned.ids[name]}: {explain_unclear(name, other, assigned.ids[other])}"
        for name, other in assigned.apart.items()
    }
    results = [Collected(make_printable(name), "skipped", why) for name, why in found.left_out]
    results += [
        Collected(make_printable(name), "unclear", explain_unclear(name, other, student))
        for name, (other, student) in sorted(assigned.unclear.items())
    ]
    for student, entries in sorted(by_student.items()):
        if len(entries) > MAX_NOTEBOOKS:
            result, said = Collected(student, "skipped", f"more than {MAX_NOTEBOOKS:,} notebooks: {len(entries):,}"), []
        elif entries:
            taken = _choose(entries, lab)
            result = _take(course, lab, student, taken, time)
            others = list_some([entry.path for entry in entries if entry is not taken])
            said = [f"took `{make_printable(taken.path)}`, not {others}"] if others else []
        else:
            course.submission(student, lab).parent.mkdir(parents=True, exist_ok=True)
            whose = [name for name in assigned.ids if assigned.ids[name] == student]
            files = list_some([file for name in whose for file in found.others.get(name, [])])
            result, said = Collected(student, "missing", f"no notebook{files and f', only {files}'}"), []
        said = [*said, result.remark, remarks.get(student, "")]
        results.append(replace(result, remark="; ".join(filter(None, said))))
    if beside := found.others.get(""):
        results.append(Collected("", "aside", list_some(beside)))
    return [replace(result, detail=make_printable(result.detail)) for result in results]


def _look(source: Path, lab: str) -> FoundSubmissions:
    if source.is_dir():
        everything = [path for path in sorted(source.iterdir()) if not path.name.startswith(".")]
        checkouts = [path for path in everything if (path / ".git").exists()]
        if not checkouts:
            return find_in_folder(source, lab)
        found, why = find_in_checkouts(checkouts), "it lies beside git checkouts and is none"
        beside = [path for path in everything if path not in checkouts]
        found.left_out += [(path.name, why) for path in beside if path.is_dir() or NOTEBOOK.search(path.name)]
        return found
    if source.is_file():
        return find_in_zip(source, lab)
    raise InputError("nothing to collect", got=source, expected="a folder, a zip, or a folder of git checkouts")


def _choose(found: list[FoundNotebook], lab: str) -> FoundNotebook:
    """Choose the notebook that counts: of the last attempt, named after the lab, or else recognised by content.

    Of several, the last one, which has the highest number from LMS and browsers.
    """
    are_named = any(entry.file.startswith(lab) for entry in found)

    def rank(place: int) -> tuple[str, bool, int, bool, int, str, int]:
        entry = found[place]
        is_called = not are_named and 1 < len(found) <= MAX_CANDIDATES and mentions_lab(lab, entry.read)
        named = entry.file.startswith(lab), _copy_number(entry.file, lab)
        return entry.attempt, *named, is_called, -entry.path.count("/"), entry.file, place

    return found[max(range(len(found)), key=rank)]


def _copy_number(file: str, lab: str) -> int:
    """2 for `01-autograd-2.ipynb`, `01-autograd (2).ipynb`, or without the blank; 0 for the lab's own name, else -1.

    No browser counts to more than nine digits.
    """
    number = re.fullmatch(r"(?:-(\d{1,9})| ?\((\d{1,9})\))?\.ipynb", file.removeprefix(lab))
    return int(number[1] or number[2] or 0) if number else -1


def _take(course: Course, lab: str, student: str, found: FoundNotebook, time: str) -> Collected:
    target = course.submission(student, lab)
    try:
        content = found.read()
    except (InputError, OSError) as error:
        target.parent.mkdir(parents=True, exist_ok=True)
        return Collected(student, "skipped", str(error))
    known = course.submitted_at(student, lab) if target.exists() else None
    if known is not None and found.submitted_at is not None and found.submitted_at < known:
        earlier = f"handed in {found.submitted_at:{SHOWN}}, before what is there ({known:{SHOWN}}), which stays"
        return Collected(student, "unchanged", found.file, earlier)
    if target.is_symlink() or not target.exists():
        status = "new"
    else:
        status = "unchanged" if target.read_bytes() == content else "updated"
    topic = names_other_lab(lab, content)
    if topic and status == "updated" and not names_other_lab(lab, target.read_bytes()):
        return Collected(student, "skipped", f"{found.path} is a notebook of {topic}; what was handed in before stays")
    remark = _stamp(target.parent, found, time, is_known=status == "unchanged")
    if status != "unchanged":
        write_atomically(target, content)
    return Collected(student, status, found.file, remark, course.submitted_at(student, lab) is not None)


def _stamp(folder: Path, found: FoundNotebook, time: str, *, is_known: bool) -> str:
    """Write the submission time, if known; for a git checkout both times, which the result reports."""
    stamp, received, committed = (folder / f"{name}.txt" for name in ("timestamp", "received", "committed"))
    if not is_known:
        for path in (stamp, received, committed):
            path.unlink(missing_ok=True)  # times of the previous submission
    if found.submitted_at is not None:
        write_stamp(stamp, found.submitted_at)
    if not found.in_checkout:
        if found.invalid_time:
            return (
                f"no time that can be read, so no penalty: got `{make_printable(found.invalid_time)}` in timestamp.txt"
            )
        is_ahead = found.submitted_at is not None and found.submitted_at > datetime.now(UTC) + SLACK
        return f"handed in {found.submitted_at:{SHOWN}}, which is yet to come" if is_ahead else ""
    receipt = read_stamp(received) or datetime.now(UTC)
    write_stamp(received, receipt)
    claimed = found.find_commit_time()
    if claimed is not None:
        write_stamp(committed, claimed)
    write_stamp(stamp, claimed if time == COMMIT and claimed is not None else receipt)
    claim = f"{claimed:{SHOWN}}" if claimed is not None else "at no time that there is"
    return f"received {receipt:{SHOWN}}, committed {claim} by the student's clock"


def count_statuses(results: Iterable[Collected]) -> Iterator[tuple[str, int]]:
    """Count results by status in a fixed order, without zeros."""
    statuses = [result.status for result in results]
    for status in STATUSES:
        if statuses.count(status):
            yield status, statuses.count(status)
