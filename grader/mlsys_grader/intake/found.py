"""Notebooks as found in a source, before they are assigned to students."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from mlsys_lab.errors import InputError

MAX_ENTRIES = 100_000
"""Files and folders in an archive, in one top folder, or in the last commit of a checkout."""
MAX_NOTEBOOKS = 1_000
"""Notebooks of one student."""
MAX_PROBED = 100
"""Notebooks read to find out whether they belong to a class."""
MAX_CANDIDATES = 10
"""Notebooks of one student read to find out which one is the lab's."""
CALLED = re.compile(rb"""\blab\(\s*\\?["']([a-z][a-z0-9-]{0,63})\b""")
"""A call of a lab's checks in a notebook's JSON, with its topic."""


@dataclass(frozen=True)
class FoundNotebook:
    """A submitted notebook. `read` returns at most MAX_FILE_BYTES + 1 bytes, so that an oversized one shows as such.

    `path` is its place in the source. `attempt` sorts several attempts, later ones being greater. `submitted_at` is the
    platform's time in UTC; `invalid_time` what it wrote instead of a time. `in_checkout`: it comes from a git checkout;
    `find_commit_time` returns the time that the student's git claims.
    """

    student: str
    file: str
    read: Callable[[], bytes]
    path: str
    attempt: str = ""
    submitted_at: datetime | None = None
    in_checkout: bool = False
    find_commit_time: Callable[[], datetime | None] = lambda: None
    invalid_time: str = ""


@dataclass
class FoundSubmissions:
    """Everything in a source: notebooks, all students mentioned, and skipped paths with the reason.

    `others` are files that are no notebooks, by student ("" if unknown). `numbered` maps students numbered by a
    platform to the name without number and whether the number is permanent. `lone_folder` is a single top folder that
    may be a class's or a student's; `lab_folder` one named after the lab.
    """

    notebooks: list[FoundNotebook] = field(default_factory=list)
    students: set[str] = field(default_factory=set)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    others: dict[str, list[str]] = field(default_factory=dict)
    numbered: dict[str, tuple[str, bool]] = field(default_factory=dict)
    lone_folder: str = ""
    lab_folder: str = ""

    def __bool__(self) -> bool:
        return bool(self.notebooks or self.students or self.left_out)


def make_printable(name: str) -> str:
    """Replace control characters in a name from an archive by `?`."""
    return "".join(c if c.isprintable() else "?" for c in name)


def list_some(names: list[str], most: int = 5) -> str:
    """List some names and count the rest: "`a`, `b` and 7 more"."""
    shown = ", ".join(f"`{make_printable(name)}`" for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def compose(name: str) -> str:
    """Compose accented letters into one character each: macOS decomposes them."""
    return unicodedata.normalize("NFC", name)


def names_other_lab(lab: str, content: bytes) -> str:
    """The topic of a lab whose checks a notebook calls, where it calls none of this lab's; else ""."""
    topics = {found.decode("ascii") for found in CALLED.findall(content)}
    return "" if lab.partition("-")[2] in topics else min(topics, default="")


def mentions_lab(lab: str, read: Callable[[], bytes]) -> bool:
    """Whether a notebook, whatever its name, calls the lab's checks.

    An unreadable one does not.
    """
    _, _, topic = lab.partition("-")
    try:
        return re.search(rf"""lab\(\s*\\?["']{re.escape(topic)}\b""".encode(), read()) is not None
    except (InputError, OSError):
        return False
