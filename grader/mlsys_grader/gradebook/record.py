"""The grading record of one submission: its content, its verdicts, and their version and seeds.

A record is one JSON file, written atomically. It alone says that a submission has been judged, so a killed run resumes
where it stopped. `entered`: the gradebook has it too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as fields_of
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

from mlsys_grader.course.files import write_atomically
from mlsys_grader.judging.performance import PerformanceVerdict
from mlsys_grader.judging.verdict import Verdict


@dataclass(frozen=True)
class Record:
    """Verdicts on the submission of `student` for `lab`. `digest` identifies the content, `version` the checks."""

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
        """Points earned, without performance points."""
        return sum(verdict.earned for verdict in self.verdicts)

    @property
    def points(self) -> float:
        """Maximum points, without performance points."""
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def extra(self) -> float:
        """Measured performance points."""
        return sum(v.performance.earned or 0.0 for v in self.verdicts if v.performance is not None)

    @property
    def faults(self) -> list[str]:
        """Errors in the checks' own code, one line each; a record with any is not final."""
        return [verdict.fault for verdict in self.verdicts if verdict.fault]

    def holds_for(self, digest: str, version: str) -> bool:
        """Whether this is the outcome for that content and version of the lab."""
        return (self.digest, self.version) == (digest, version) and not self.faults

    def stamped(self) -> Record:
        """Copy the record with the current time as `judged_at`."""
        return replace(self, judged_at=datetime.now(UTC).isoformat(timespec="seconds"))

    def write(self, path: Path) -> None:
        """Write the record atomically."""
        write_atomically(path, json.dumps(asdict(self), indent=1, ensure_ascii=False).encode())


def read_record(path: Path) -> Record | None:
    """Read a record; None if it is missing or of another format: the submission is then judged again."""
    try:
        fields = json.loads(path.read_bytes())
        fields["verdicts"] = tuple(_verdict(verdict) for verdict in fields["verdicts"])
        fields["notes"] = tuple(fields["notes"])
        if not all(_is_text(note) for note in fields["notes"]):
            raise TypeError("a note that is no text")
        record = Record(**fields)
        _require_types(record)
        return record
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _verdict(fields: dict[str, Any]) -> Verdict:
    if fields.get("performance") is not None:
        fields = {**fields, "performance": _speed(fields["performance"])}
    verdict = Verdict(**fields)
    _require_types(verdict)
    if not 0 <= verdict.earned <= verdict.points:
        raise ValueError("marks that cannot be")
    return verdict


def _speed(fields: dict[str, Any]) -> PerformanceVerdict:
    speed = PerformanceVerdict(**fields)
    _require_types(speed)
    if (speed.earned is not None) != speed.measured or not 0 <= (speed.earned or 0.0) <= speed.points:
        raise ValueError("performance points that cannot be")
    return speed


def _require_types(value: Any) -> None:
    """Raise `TypeError` unless a dataclass's plain fields have their declared types."""
    for declared in fields_of(value):
        is_right = PLAIN.get(str(declared.type))
        if is_right is not None and not is_right(getattr(value, declared.name)):
            raise TypeError(f"{declared.name} is no {declared.type}")


def _is_text(value: object) -> bool:
    """Whether a text can be written to a file: a lone surrogate cannot."""
    return isinstance(value, str) and value.encode("utf-8", "replace").decode("utf-8") == value


PLAIN: dict[str, Callable[[Any], bool]] = {
    "str": _is_text,
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: type(value) is int,
    "float": lambda value: type(value) in (int, float) and isfinite(value),
    "float | None": lambda value: value is None or (type(value) in (int, float) and isfinite(value)),
}
"""Type tests by type name."""
