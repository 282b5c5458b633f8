"""A notebook as somebody handed it in, and all that came with it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from mlsys_lab.errors import InputError

ENTRIES = 100_000
"""Most files and folders in an archive, below one folder of a folder, or in the last commit of a checkout."""
NOTEBOOKS = 1_000
"""Most notebooks of one student."""
LOOKED_INTO = 100
"""Most notebooks that are read to find out whether they are a class's, or which of them is the lab's."""


@dataclass(frozen=True)
class HandIn:
    """A notebook that was handed in. `read` gives at most FILE_BYTES + 1 bytes: what is too large shows as such.

    `path` is its place in the source. `attempt` tells which of several it is, as a text: later ones are greater.
    `handed_in` is a time that the platform gave, in UTC; `odd_time` what stood in its place and is none.
    `in_checkout`: it comes out of a git checkout; `find_commit_time` gives the time that the student's git claims.
    """

    student: str
    file: str
    read: Callable[[], bytes]
    path: str
    attempt: str = ""
    handed_in: datetime | None = None
    in_checkout: bool = False
    find_commit_time: Callable[[], datetime | None] = lambda: None
    odd_time: str = ""


@dataclass
class HandIns:
    """All that a source holds: notebooks, everybody of whom there is anything, and paths left out with the reason.

    `others` are files that are no notebooks, by whose they are ("" where nobody can tell). `numbered`: the name without
    its number of each student whom a platform numbers, and whether the number is the student's own. `lone_folder` is
    the one that everything lies in, where it may be a class's as well as a student's; `lab_folder` one named after the
    lab.
    """

    notebooks: list[HandIn] = field(default_factory=list)
    students: set[str] = field(default_factory=set)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    others: dict[str, list[str]] = field(default_factory=dict)
    numbered: dict[str, tuple[str, bool]] = field(default_factory=dict)
    lone_folder: str = ""
    lab_folder: str = ""

    def __bool__(self) -> bool:
        return bool(self.notebooks or self.students or self.left_out)


def make_printable(name: str) -> str:
    """Replace by `?` what a terminal would obey in a name out of an archive."""
    return "".join(c if c.isprintable() else "?" for c in name)


def name_some(names: list[str], most: int = 5) -> str:
    """Write out some names and how many more there are: "`a`, `b` and 7 more"."""
    shown = ", ".join(f"`{make_printable(name)}`" for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def compose(name: str) -> str:
    """Write letters with accents as one character each: macOS writes them as two, which look the same and are not."""
    return unicodedata.normalize("NFC", name)


def calls_up(lab: str, read: Callable[[], bytes]) -> bool:
    """Whether a notebook seems to be of a lab, whatever its file is called: it asks for the lab's checks.

    One that cannot be read seems to be of none.
    """
    _, _, topic = lab.partition("-")
    try:
        return re.search(rf"""lab\(\s*\\?["']{re.escape(topic)}\b""".encode(), read()) is not None
    except (InputError, OSError):
        return False
