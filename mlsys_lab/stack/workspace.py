"""The learner's workspace: a folder with `.mlsys-lab/`, which holds progress and the artifacts that were accepted."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlsys_lab.errors import InputError
from mlsys_lab.stack.artifact import Artifact

MARK = ".mlsys-lab"
FORMAT = 1


def write_atomic(path: Path, text: str) -> None:
    """Write a whole file or nothing: to a temporary file beside it, then renamed; InputError if that fails."""
    neighbour = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            neighbour = Path(file.name)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        neighbour.replace(path)
    except OSError as error:
        if neighbour is not None:
            neighbour.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}", got=error.strerror, help="choose another folder") from None


@dataclass(frozen=True)
class Workspace:
    """A learner's workspace: labs in the folder `root`, and what the course keeps about them in `root/.mlsys-lab`."""

    root: Path

    @classmethod
    def find(cls, start: Path | None = None) -> Workspace | None:
        """The nearest workspace among `start` (by default the current folder) and the folders above it, or None."""
        folder = (start or Path.cwd()).resolve()
        for candidate in (folder, *folder.parents):
            if (candidate / MARK).is_dir():
                return cls(candidate)
        return None

    @classmethod
    def create(cls, root: Path) -> Workspace:
        """Make `root` a workspace; `InputError` where it cannot be written."""
        try:
            (root / MARK).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            help_ = "choose a folder that you can write"
            raise InputError(f"cannot make a workspace in {root}", got=error.strerror, help=help_) from None
        return cls(root.resolve())

    @property
    def progress_path(self) -> Path:
        """Path of the JSON file that holds the learner's progress."""
        return self.root / MARK / "progress.json"

    def progress(self) -> dict[str, Any]:
        """Points earned and code accepted, by topic: `{"autograd": {"checks": {...}, "accepted": {...}}}`.

        A damaged file is set aside under another name and said in one `InputError`; the next call starts afresh.
        """
        try:
            document = json.loads(self.progress_path.read_text(encoding="utf-8"))
            if not isinstance(document, dict) or document.get("format") != FORMAT:
                raise ValueError(f"no progress record of format {FORMAT}")
            return _validate(document.get("labs"))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise InputError(f"cannot read {self.progress_path}", got=error.strerror) from None
        except ValueError as error:
            raise self._set_aside(error) from None

    def record(self, topic: str, points: Mapping[str, float]) -> None:
        """Save the points that each check of a lab, by name, earned when it was last run."""
        labs = self.progress()
        checks = labs.setdefault(topic, {}).setdefault("checks", {})
        checks.update({name: {"points": earned, "at": _now()} for name, earned in points.items()})
        self._write(labs)

    def accept(self, topic: str, artifact: Artifact, version: str = "") -> Path:
        """Save an artifact whose checks all pass, for later labs to run on; returns its path.

        `version` is that of the lab (`LabInfo.version`) whose checks it has passed, "" where it is not known.
        """
        path = self.artifact_path(topic)
        write_atomic(path, artifact.source)
        labs = self.progress()
        labs.setdefault(topic, {})["accepted"] = {"notebook": artifact.name, "at": _now(), "version": version}
        self._write(labs)
        return path

    def artifact_path(self, topic: str) -> Path:
        """Path of a topic's accepted artifact, whether or not it exists."""
        return self.root / MARK / "artifacts" / f"{topic}.py"

    def artifact(self, topic: str) -> Artifact | None:
        """The accepted artifact of a topic; None if there is none."""
        path = self.artifact_path(topic)
        try:
            return Artifact.parse(f"{MARK}/artifacts/{topic}.py", path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {path}", got=error, help="delete it and accept the lab again") from None

    def _write(self, labs: Mapping[str, Any]) -> None:
        write_atomic(self.progress_path, json.dumps({"format": FORMAT, "labs": labs}, indent=1) + "\n")

    def _set_aside(self, error: ValueError) -> InputError:
        kept = self.progress_path.with_name(f"progress-damaged-{_now().replace(':', '')}.json")
        try:
            self.progress_path.replace(kept)
        except OSError as failure:
            return InputError(f"{self.progress_path} is damaged", got=failure.strerror, help="move it away by hand")
        help_ = f"it is kept as {kept.name}; run the command again to start a new record"
        return InputError(f"{self.progress_path} is damaged", got=error, help=help_)


def _validate(labs: object) -> dict[str, Any]:
    """Progress read from JSON, returned if its nesting is what the rest of the code expects; else ValueError."""
    if not isinstance(labs, dict):
        raise ValueError("no labs in it")
    for topic, lab in labs.items():
        checks = lab.get("checks", {}) if isinstance(lab, dict) else None
        if not isinstance(checks, dict) or not isinstance(lab.get("accepted", {}), dict):
            raise ValueError(f"lab {topic!r} is not a record")
        if not all(
            isinstance(entry, dict) and isinstance(entry.get("points"), int | float) for entry in checks.values()
        ):
            raise ValueError(f"a check of lab {topic!r} is not a record")
    return labs


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
