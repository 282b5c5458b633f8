"""Who is who: the id of every name that hand-ins came under, remembered from one collect to the next.

The file is students.csv in the course folder, two columns `name,student`. A person may add lines and correct them.

Two names are asked about only where their keys (case, accents, signs and order of words folded) are equal. There is no
measure of similarity: names that differ in one letter belong to two students, and are not asked about.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from mlsys_grader.course.files import write_atomically
from mlsys_grader.course.folder import STUDENT, Course, check_student
from mlsys_grader.course.tables import format_csv, parse_csv
from mlsys_grader.intake.found import compose, make_printable
from mlsys_lab.errors import InputError

FIELDS = ["name", "student"]
NAMESAKES = 3
"""Most students of a class who share a name; of more it is none: Moodle calls all of them "Participant" when blind."""
COPY_SUFFIX = re.compile(r"(?<!\s)(?:\s+-\s+copy)?(?:\s*\(\d+\))?$", re.IGNORECASE)
"""What Windows and browsers put behind a name that is there already. It begins at a name's end, not within blanks: a
search that began at each of a million blanks would not end.
"""

ADDED = re.compile(r"copy|final|fixed|late|new|resubmission|resubmitted|v\d+")
"""A word that students put behind their names, as `_fold` leaves it."""
UMLAUT = re.compile(r"([aou])e")
"""ä, ö and ü where there are none; a name with such letters of its own is only asked about once."""


@dataclass
class Assignment:
    """The id of each name. `apart`: names kept apart from another new one that reads alike, which is given. `unclear`:
    names without an id, with the known name whose student each may be, and the id.
    """

    ids: dict[str, str] = field(default_factory=dict)
    apart: dict[str, str] = field(default_factory=dict)
    unclear: dict[str, tuple[str, str]] = field(default_factory=dict)


def assign_ids(
    course: Course,
    lab: str,
    names: Iterable[str],
    settled: Mapping[str, str],
    numbered: Mapping[str, tuple[str, bool]] = MappingProxyType({}),
) -> Assignment:
    """Give each name an id: the remembered one, what `settled` says, else a new one; remembers all of them.

    A new name that differs from a remembered one only in case, accents, blanks or signs may be the same person: it is
    left unclear. Where both are new they are kept apart. `settled` may have a name as it was printed.

    `numbered` are names that end in a platform's number: the name without it, and whether the number is the student's
    own. Then another name with it is unclear too. Moodle gives everybody another number for each lab: there the name
    tells who it is, if no other student has it. Raises `InputError` for a damaged students.csv.
    """
    names = sorted(names, key=lambda name: (not STUDENT.fullmatch(name), name != name.lower(), name))
    meant = {name: settled[make_printable(name)] for name in names if make_printable(name) in settled}
    remembered = {**read_roster(course), **{name: check_student(id_) for name, id_ in {**settled, **meant}.items()}}
    remembered = {compose(name): student for name, student in remembered.items()} | remembered
    folders = {path.name for path in (course.root / "submitted").iterdir() if path.is_dir()}
    known = {**{student: student for student in folders - set(remembered.values())}, **remembered}
    like: dict[str, str] = {}
    for name, student in known.items():
        _note(like, name, name)
        _note(like, student, name)
    found, fresh = Assignment(), dict[str, str]()
    for name in names:
        student, other = _make_id(name), next((like[key] for key in _keys(name) if key in like), None)
        if name in remembered:
            found.ids[name] = remembered[name]
            continue
        others, is_certain = _recognise(course, lab, name, numbered, known)
        if is_certain:
            found.ids[name] = fresh[name] = known[name] = known[others[0]]
            continue
        if others:
            found.unclear[name] = (others[0], known[others[0]])
            continue
        was_collected_so = other not in remembered and other not in fresh and known.get(other or "") == student
        if other in fresh:
            found.apart[name] = other
        elif other is not None and not was_collected_so:
            found.unclear[name] = (other, known[other])
            continue
        taken = {one.casefold() for one in known.values()} - ({student.casefold()} if was_collected_so else set())
        if not STUDENT.fullmatch(student) or student.casefold() in taken:
            student = f"{student or 'student'}-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:8]}"
        found.ids[name] = fresh[name] = known[name] = student
        _note(like, name, name)
    _write(course, {**remembered, **fresh})
    return found


def _recognise(
    course: Course, lab: str, name: str, numbered: Mapping[str, tuple[str, bool]], known: Mapping[str, str]
) -> tuple[list[str], bool]:
    """Known names of students who may be the one that a platform numbers, one of each, and whether it is certain."""
    bare, is_stable = numbered.get(name, ("", True))
    if is_stable:
        number = name.removeprefix(bare)
        return [other for other in known if bare and other.endswith(number) and _fold(other) != _fold(name)], False
    namesakes = [one for one, (theirs, _) in numbered.items() if _fold(theirs) == _fold(bare)]
    if len(namesakes) > NAMESAKES:
        return [], False
    alike = re.compile(rf"{re.escape(_fold(bare))}-\d+")
    # Who is here, or was, under another number of this lab is somebody else.
    found = {
        student: other
        for other, student in known.items()
        if alike.fullmatch(_fold(other))
        and other not in numbered
        and not course.submission(student, lab).parent.exists()
    }
    return list(found.values()), len(found) == len(namesakes) == 1


def explain_unclear(name: str, other: str, student: str) -> str:
    """One line for a person: two names that may be one student, and how to settle it."""
    one, another = make_printable(name), make_printable(other)
    looks = "may be" if set(_keys(name)).isdisjoint({*_keys(other), *_keys(student)}) else "reads like"
    return (
        f"`{one}` {looks} `{another}`, who is {student}: one student or two? If one, collect again with "
        f'--who "{one}={student}"; if two, give it an id of its own there (students.csv keeps it)'
    )


def _make_id(name: str) -> str:
    if STUDENT.fullmatch(name):
        return name
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9.@-]+", "-", plain).strip("-.@")[:80]


def _fold(name: str) -> str:
    """What is left of a name without case, accents, invisible characters, the mark of a copy (`ada (1)`, `ada - Copy`),
    and with all signs and blanks alike.
    """
    name = COPY_SUFFIX.sub("", name) or name
    letters = unicodedata.normalize("NFKD", name.casefold())
    plain = "".join(c for c in letters if unicodedata.category(c) not in ("Mn", "Cf"))
    return re.sub(r"[\W_]+", "-", plain).strip("-") or name


def _keys(name: str) -> tuple[str, ...]:
    """What a name may be known by, the surest first: as `_fold` has it, its letters alone, its words in any order.

    The latter two are without what follows an @, what students add to a name, and how Germans write an umlaut.
    """
    folded = _fold(name)
    words = _fold(name.partition("@")[0] or name).split("-")
    while len(words) > 1 and ADDED.fullmatch(words[-1]):
        words.pop()
    words = [UMLAUT.sub(r"\1", word) for word in words]
    between = "-" if all(word.isdigit() for word in words) else ""
    return folded, f"letters {between.join(words)}", f"words {' '.join(sorted(words))}"


def _note(like: dict[str, str], text: str, name: str) -> None:
    """Note a name for all that the text, itself or its student's id, may be known by; the first to come stays."""
    for key in _keys(text):
        like.setdefault(key, name)


def read_roster(course: Course) -> dict[str, str]:
    """Read the id of each name that has one. Raises `InputError` for a file that is damaged."""
    try:
        text = course.roster.read_bytes().decode("utf-8-sig", errors="surrogatepass")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {course.roster}", got=error) from None
    rows = parse_csv(text)
    _, head = next(rows, (1, []))
    if not set(FIELDS) <= set(head):
        raise InputError(f"{course.roster} is damaged", got=head, expected="a first line `name,student`")
    columns = [head.index(field) for field in FIELDS]
    ids: dict[str, str] = {}
    for line, row in rows:
        name, student = (row[column] if column < len(row) else "" for column in columns)
        if not name or not STUDENT.fullmatch(student) or ids.get(name, student) != student:
            what = f"{course.roster}, line {line}"
            raise InputError(
                what, got=f"{name},{student}", expected="a name that no other line has, and a student's id"
            )
        ids[name] = student
    return ids


def _write(course: Course, ids: Mapping[str, str]) -> None:
    if ids == read_roster(course):
        return
    write_atomically(course.roster, format_csv([FIELDS, *sorted(ids.items())]).encode())
