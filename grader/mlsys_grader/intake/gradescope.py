"""Who handed in what Gradescope exports: folders are numbers of submissions, and a file beside them names people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import yaml

METADATA = "submission_metadata.yml"
METADATA_BYTES = 16 << 20
"""A class of a thousand takes one or two, with the results of an autograder many more."""
EXPORT = re.compile(r"assignment_\d+_export")
SUBMISSION = re.compile(r"submission_\d+")


@dataclass(frozen=True)
class Submitted:
    """Who handed a submission in, several people as a group, and when Gradescope received it, as a text."""

    students: tuple[str, ...]
    time: str


def find_metadata(paths: list[PurePosixPath]) -> PurePosixPath | None:
    """The file that names the people, where it lies as Gradescope puts it: no student can hand one in there."""
    tops = {path.parts[0] for path in paths if path.parts}
    home = PurePosixPath(*tops) if len(tops) == 1 and EXPORT.fullmatch(next(iter(tops))) else PurePosixPath()
    path = home / METADATA
    return path if path in paths else None


def read_submitted(content: bytes) -> dict[str, Submitted]:
    """Read who handed in the submission in each folder; nothing of a file that is not as Gradescope writes it."""
    try:
        document = yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    entries = document.items() if isinstance(document, Mapping) else ()
    found = {str(folder): _read_entry(entry) for folder, entry in entries if isinstance(entry, Mapping)}
    return {folder: entry for folder, entry in found.items() if SUBMISSION.fullmatch(folder) and entry.students}


def _read_entry(entry: Mapping[Any, Any]) -> Submitted:
    people = entry.get(":submitters")
    people = [person for person in people if isinstance(person, Mapping)] if isinstance(people, list) else []
    students = [str(person.get(":email") or person.get(":name") or "").replace("/", "-") for person in people]
    time = entry.get(":created_at")
    if isinstance(time, datetime):
        time = (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat()
    return Submitted(tuple(filter(None, students)), str(time or ""))
