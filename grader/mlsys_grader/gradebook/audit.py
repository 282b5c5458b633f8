"""The audit log: who graded what and when, with which versions, seeds and sandbox, and the outcome.

audit.jsonl in the course folder holds one JSON object per line and is append-only.
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
from mlsys_grader.course.lock import find_user_and_host
from mlsys_grader.gradebook.record import Record


class AuditLog:
    """Append to a course's log. Use it as a context manager, under the course's lock.

    A line torn by a crash was never acknowledged: it is cut off, and the next line says so.
    """

    def __init__(self, course: Course) -> None:
        self._descriptor = os.open(course.audit, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        user, host = find_user_and_host()
        self._always = {"user": user, "host": host, "package": version("mlsys-lab")}
        content = course.audit.read_bytes()
        whole_bytes = content.rfind(b"\n") + 1
        if torn_bytes := len(content) - whole_bytes:
            os.ftruncate(self._descriptor, whole_bytes)
            self.write("mended", torn_bytes=torn_bytes)

    def __enter__(self) -> AuditLog:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        os.close(self._descriptor)

    def write_outcome(self, event: str, record: Record, *, engine: str, entered: bool, error: str = "") -> None:
        """Log the outcome of a submission. The record holds the seeds; the log holds their hash."""
        self.write(
            event,
            student=record.student,
            lab=record.lab,
            digest=record.digest,
            version=record.version,
            seeds=hash_seeds({verdict.check: verdict.seed for verdict in record.verdicts}),
            sandbox=record.sandbox,
            engine=engine,
            earned=record.earned,
            points=record.points,
            entered=entered,
            error=error,
        )

    def write(self, event: str, **fields: Any) -> None:
        """Append one line and flush it to disk; raises `OSError` and leaves the log unchanged if that fails."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": time, "event": event, **self._always, **fields}).encode()
        size_bytes = os.fstat(self._descriptor).st_size
        try:
            left = memoryview(line + b"\n")
            while left:
                left = left[os.write(self._descriptor, left) :]
            os.fsync(self._descriptor)
        except BaseException:
            os.ftruncate(self._descriptor, size_bytes)
            raise


@dataclass(frozen=True)
class History:
    """A log: its entries, the numbers of damaged lines, and whether the last line is torn."""

    entries: list[dict[str, Any]]
    damaged: tuple[int, ...]
    torn: bool


def read_audit(path: Path) -> History:
    """Read a log; a missing one is empty. A torn last line is no damage: it was never acknowledged."""
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    torn = lines.pop() != b""
    read = [_parse_object(line) for line in lines]
    damaged = tuple(number for number, entry in enumerate(read, 1) if entry is None)
    return History([entry for entry in read if entry is not None], damaged, torn)


def hash_seeds(seeds: Mapping[str, int]) -> str:
    """Hash the seeds of all checks, to tell whether two verdicts used the same ones."""
    return hashlib.sha256(json.dumps(seeds, sort_keys=True).encode()).hexdigest()


def _parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None
