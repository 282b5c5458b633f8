"""The audit log: who graded what, when, with which versions, seeds and sandbox, and what came of it.

audit.jsonl in the course folder holds one JSON object per line and is only ever appended to. Each line carries its
number and the SHA-256 of the line before it, so that a line that is changed, dropped or put in between shows. Whoever
can write the file can also reckon the whole chain anew: the hash of the last line, kept elsewhere, tells that too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

from mlsys_grader.course.folder import Course
from mlsys_grader.course.lock import user_and_host
from mlsys_grader.gradebook.record import Record

FIRST = "0" * 64
"""What stands for the line before the first."""


class AuditLog:
    """Appends to a course's log; use it as a context manager, under the course's lock.

    A line that a crash tore in the midst was never acknowledged: it is cut off, and the next line says so.
    """

    def __init__(self, course: Course) -> None:
        self._descriptor = os.open(course.audit, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        user, host = user_and_host()
        self._always = {"user": user, "host": host, "package": version("mlsys-lab")}
        content = _whole(self._descriptor)
        lines = content.split(b"\n")
        torn = lines.pop()
        self._number, self._previous = len(lines), _hash(lines[-1]) if lines else FIRST
        if torn:
            os.ftruncate(self._descriptor, len(content) - len(torn))
            self.write("mended", torn_bytes=len(torn))

    def __enter__(self) -> AuditLog:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        os.close(self._descriptor)

    def outcome(self, event: str, record: Record, *, engine: str, entered: bool, error: str = "") -> None:
        """Log what became of a submission. The seeds are in the record; here is their hash."""
        self.write(
            event,
            student=record.student,
            lab=record.lab,
            digest=record.digest,
            version=record.version,
            seeds=seeds_hash({verdict.check: verdict.seed for verdict in record.verdicts}),
            sandbox=record.sandbox,
            engine=engine,
            earned=record.earned,
            points=record.points,
            entered=entered,
            error=error,
        )

    def write(self, event: str, **fields: Any) -> None:
        """Append one line and have it on the disk; raises `OSError` and leaves the log as it was where that fails."""
        entry = {
            "number": self._number + 1,
            "previous": self._previous,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": event,
            **self._always,
            **fields,
        }
        line = json.dumps(entry).encode()
        size = os.fstat(self._descriptor).st_size
        try:
            left = memoryview(line + b"\n")
            while left:
                left = left[os.write(self._descriptor, left) :]
            os.fsync(self._descriptor)
        except BaseException:
            os.ftruncate(self._descriptor, size)
            raise
        self._number, self._previous = self._number + 1, _hash(line)


@dataclass(frozen=True)
class History:
    """A log as read: its entries up to the first that is wrong, what is wrong there, and the last line's hash."""

    entries: list[dict[str, Any]]
    damage: str
    last: str
    torn: bool


def read_audit(path: Path) -> History:
    """Read and verify a log; one that is not there is empty. A torn last line is not damage: it was never whole."""
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    torn = lines.pop() != b""
    entries: list[dict[str, Any]] = []
    previous = FIRST
    for number, line in enumerate(lines, 1):
        if damage := _damage(line, number, previous):
            return History(entries, f"line {number} {damage}", previous, torn)
        entries.append(json.loads(line))
        previous = _hash(line)
    return History(entries, "", previous, torn)


def seeds_hash(seeds: Mapping[str, int]) -> str:
    """A hash that tells whether two verdicts used the same seeds."""
    return _hash(json.dumps(seeds, sort_keys=True).encode())


def _damage(line: bytes, number: int, previous: str) -> str:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return "is not JSON"
    if not isinstance(entry, dict) or entry.get("number") != number:
        return f"does not carry the number {number}: a line was dropped, put in or moved"
    if entry.get("previous") != previous:
        return "does not carry the hash of the line before it: one of the two was changed"
    return ""


def _whole(descriptor: int) -> bytes:
    pieces, place = [], 0
    while piece := os.pread(descriptor, 1 << 20, place):
        pieces.append(piece)
        place += len(piece)
    return b"".join(pieces)


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
