"""A bundle: all that it takes to run a capstone again, as one JSON file, with the bits per byte that it reached."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlsys_lab.capstone.job import Calibration
from mlsys_lab.capstone.settings import Settings
from mlsys_lab.capstone.sheet import Sheet
from mlsys_lab.errors import InputError
from mlsys_lab.stack.workspace import write_atomic
from mlsys_lab.validation import require_positive

FORMAT = 1


@dataclass(frozen=True)
class Bundle:
    """The learner's accepted artifacts by topic, the versions of the labs that accepted them, and a run on them.

    A topic without an artifact ran on the solved lab. Raises InputError for bits per byte that are not positive, and
    for versions of other topics than the artifacts'.
    """

    artifacts: Mapping[str, str]
    versions: Mapping[str, str]
    settings: Settings
    calibration: Calibration
    sheet: Sheet
    bits_per_byte: float

    def __post_init__(self) -> None:
        for name, texts in (("artifacts", self.artifacts), ("versions", self.versions)):
            if not all(isinstance(text, str) for pair in texts.items() for text in pair):
                raise InputError(f"a bundle's {name} are no texts by topic", got=texts)
        if self.artifacts.keys() != self.versions.keys():
            got, expected = (", ".join(sorted(one)) or "none" for one in (self.versions, self.artifacts))
            raise InputError("versions of other topics than the artifacts'", got=got, expected=expected)
        require_positive(bits_per_byte=self.bits_per_byte)

    def to_json(self) -> str:
        """All of it as JSON."""
        parts = {name: json.loads(getattr(self, name).to_json()) for name in ("settings", "calibration", "sheet")}
        texts = {"artifacts": dict(self.artifacts), "versions": dict(self.versions)}
        return json.dumps({"format": FORMAT, **texts, **parts, "bits_per_byte": self.bits_per_byte}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Bundle:
        """Read what `to_json` wrote; InputError for anything else."""
        try:
            fields = json.loads(text)
            if (found := fields["format"]) != FORMAT:
                raise InputError("a bundle of another format", got=repr(found), expected=FORMAT)
            return cls(
                dict(fields["artifacts"]),
                dict(fields["versions"]),
                Settings.from_json(json.dumps(fields["settings"])),
                Calibration.from_json(json.dumps(fields["calibration"])),
                Sheet.from_json(json.dumps(fields["sheet"])),
                fields["bits_per_byte"],
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError("not a bundle", got=" ".join(f"{type(error).__name__}: {error}".split())) from None

    def write(self, path: Path) -> None:
        """Write it to a file, whole or not at all."""
        write_atomic(path, self.to_json() + "\n")

    @classmethod
    def read(cls, path: Path) -> Bundle:
        """Read a file that `write` wrote. InputError, which names the file, for anything else."""
        try:
            return cls.from_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, InputError) as error:
            raise InputError(f"cannot read {path}", got=error) from None
