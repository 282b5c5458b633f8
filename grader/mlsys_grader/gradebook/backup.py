"""Backups of the gradebook, one before each batch of marks.

backups/gradebook-NNNNNN-TIMESTAMP.db: ordered by number, because a clock can jump; the time is for people. SQLite makes
the copy, which is checked before it gets its name. The newest KEPT stay.

To restore one:  rm -f gradebook.db-journal && cp backups/gradebook-NNNNNN-TIMESTAMP.db gradebook.db Then `mlsys-grader
grade LAB` enters from the records whatever the copy lacks.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from mlsys_grader.course.files import sync_folder
from mlsys_grader.course.folder import Course
from mlsys_lab.errors import InputError

KEPT = 20
NAME = re.compile(r"gradebook-(\d{6,})-[0-9TZ]+\.db")


def back_up(course: Course) -> Path | None:
    """Back up the gradebook; None if there is none yet.

    Raises `InputError` for a damaged gradebook, naming the newest sound copy, and for a folder that is not writable.
    Old copies are deleted only once the new one is safe.
    """
    if not course.gradebook.exists():
        return None
    older = _numbered(course)
    number = older[-1][0] + 1 if older else 1
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target = course.backups / f"gradebook-{number:06d}-{stamp}.db"
    unfinished = course.backups / ".unfinished.db"
    try:
        course.backups.mkdir(exist_ok=True)
        unfinished.unlink(missing_ok=True)
        if damage := _copy(course.gradebook, unfinished) or find_damage(unfinished):
            raise describe_damage(course, damage)
        os.replace(unfinished, target)  # noqa: PTH105
        sync_folder(course.backups)
    except (OSError, sqlite3.OperationalError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot back the gradebook up to {course.backups}", got=said) from None
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
    for _, path in older[: max(0, len(older) + 1 - KEPT)]:
        path.unlink(missing_ok=True)
    return target


def open_database(path: Path) -> sqlite3.Connection:
    """Open an existing database for reading; never create one.

    The connection can write, so that SQLite can roll back what a crash left.
    """
    quoted = str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return sqlite3.connect(f"file:{quoted}?mode=rw", uri=True)


def find_damage(path: Path) -> str:
    """Describe the damage of a gradebook's file; "" for a sound one."""
    try:
        with closing(open_database(path)) as database:
            said = [str(row[0]) for row in database.execute("PRAGMA integrity_check(1)")]
            database.execute("SELECT count(*) FROM grade").fetchone()
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if said == ["ok"] else " ".join(said[0].split()) if said else "no answer to an integrity check"


def describe_damage(course: Course, damage: str) -> InputError:
    """The error for a damaged gradebook: what is wrong, and how to restore the newest good copy."""
    for _, path in reversed(_numbered(course)):
        if not find_damage(path):
            way = f"cp {path} {course.gradebook}"
            break
    else:
        way = f"no good backup is left; mv {course.gradebook} {course.gradebook}.damaged"
    journal = f"rm -f {course.gradebook}-journal && " if way.startswith("cp") else ""
    return InputError(
        f"the gradebook {course.gradebook} is damaged",
        got=damage,
        help=f"{journal}{way}, then `mlsys-grader grade LAB` for each lab: marks come back from the records",
    )


def _copy(source: Path, target: Path) -> str:
    """Copy a database with SQLite's backup; returns the damage of the source, or ""."""
    with closing(sqlite3.connect(target)) as copy:
        try:
            with closing(open_database(source)) as database:
                database.execute("SELECT count(*) FROM sqlite_master").fetchone()
                database.backup(copy)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            return str(error)
    return ""


def _numbered(course: Course) -> list[tuple[int, Path]]:
    """Existing backups, oldest first."""
    if not course.backups.is_dir():
        return []
    matches = ((NAME.fullmatch(path.name), path) for path in course.backups.iterdir())
    return sorted((int(match[1]), path) for match, path in matches if match)
