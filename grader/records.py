"""The grading record of one submission: what was handed in, what came of it, under which version and seeds.

A record is one JSON file, written whole or not at all. It is the only thing that says a submission has been judged,
so a run that was killed starts again where it stood. `entered` says that the gradebook has it too.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from grader.judge import Verdict


@dataclass(frozen=True)
class Record:
    """Verdicts on the submission of `student` for `lab`. `digest` names its content, `version` the checks it met."""

    student: str
    lab: str
    digest: str
    version: str
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()
    sandbox: str = "bubblewrap"
    judged_at: str = ""
    entered: bool = False

    @property
    def earned(self) -> float:
        """Points earned."""
        return sum(verdict.earned for verdict in self.verdicts)

    @property
    def points(self) -> float:
        """Points to be had."""
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def faults(self) -> list[str]:
        """What went wrong in the course's own code: such a record is not final."""
        return [verdict.fault for verdict in self.verdicts if verdict.fault]

    def holds_for(self, digest: str, version: str) -> bool:
        """Whether this is the outcome for that content under that version of the lab."""
        return (self.digest, self.version) == (digest, version) and not self.faults

    def stamped(self) -> Record:
        """The same record with the present time as that of the verdict."""
        return replace(self, judged_at=datetime.now(UTC).isoformat(timespec="seconds"))

    def write(self, path: Path) -> None:
        """Write the record whole or not at all."""
        write_atomically(path, json.dumps(asdict(self), indent=1, ensure_ascii=False).encode())


def read_record(path: Path) -> Record | None:
    """The record at `path`; None where there is none, or one of another make: then the submission is judged anew."""
    try:
        fields = json.loads(path.read_bytes())
        fields["verdicts"] = tuple(Verdict(**verdict) for verdict in fields["verdicts"])
        fields["notes"] = tuple(fields["notes"])
        return Record(**fields)
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        return None


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step, on the disk before this returns; nothing half-written is ever seen under its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # noqa: PTH101 - a name, not a Path
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        os.unlink(temporary)  # noqa: PTH108
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Put a folder's names on the disk, so that a file's new name outlives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
