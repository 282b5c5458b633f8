"""Submitters in a Gradescope export: folders are numbered, and a metadata file names the people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import PurePosixPath
from typing import Any

import yaml

from mlsys_grader.intake.bounded import run_bounded

METADATA = "submission_metadata.yml"
METADATA_BYTES = 16 << 20
"""A class of a thousand takes one or two MB, with autograder results many more."""
EXPORT = re.compile(r"assignment_\d+_export")
SUBMISSION = re.compile(r"submission_\d+")


@dataclass(frozen=True)
class GradescopeSubmission:
    """Submitters of one submission (several for a group), and when Gradescope received it, as text."""

    students: tuple[str, ...]
    time: str


def find_metadata(paths: list[PurePosixPath]) -> PurePosixPath | None:
    """Path of the metadata file where Gradescope puts it: no student can place one there."""
    tops = {path.parts[0] for path in paths if path.parts}
    home = PurePosixPath(*tops) if len(tops) == 1 and EXPORT.fullmatch(next(iter(tops))) else PurePosixPath()
    path = home / METADATA
    return path if path in paths else None


def read_submitted(content: bytes) -> dict[str, GradescopeSubmission]:
    """Read the submitters by folder; empty for a file that is not Gradescope's.

    Raises `InputError` if parsing takes too long or too much memory: YAML aliases can expand without bound.
    """
    submitted = run_bounded(parse_metadata, content)
    return {folder: GradescopeSubmission(tuple(students), time) for folder, (students, time) in submitted.items()}


def parse_metadata(content: bytes) -> dict[str, tuple[list[str], str]]:
    """Students and time of the submission in each folder."""
    try:
        document = yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    entries = document.items() if isinstance(document, Mapping) else ()
    found = {str(folder): _read_entry(entry) for folder, entry in entries if isinstance(entry, Mapping)}
    return {folder: entry for folder, entry in found.items() if SUBMISSION.fullmatch(folder) and entry[0]}


def _read_entry(entry: Mapping[Any, Any]) -> tuple[list[str], str]:
    people = entry.get(":submitters")
    people = [person for person in people if isinstance(person, Mapping)] if isinstance(people, list) else []
    students = [(_text(person.get(":email")) or _text(person.get(":name"))).replace("/", "-") for person in people]
    time = entry.get(":created_at")
    if isinstance(time, datetime):
        time = (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat()
    return [student for student in students if student], _text(time)


def _text(value: object) -> str:
    """A plain value as text; "" for a list or mapping, whose aliases can expand without bound."""
    return str(value) if isinstance(value, str | int | float | date) and value else ""
