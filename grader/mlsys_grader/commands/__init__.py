"""The commands of `mlsys-grader`, a module each, and the options that they share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mlsys_lab.cli.app import argument, option


@dataclass(kw_only=True)
class CourseOptions:
    """The folders that every command takes."""

    course: Annotated[Path, option("course folder", "DIR", "Folders")] = Path("course")
    labs: Annotated[
        Path | None, option("released labs (by default those of the installed course)", "DIR", "Folders")
    ] = None


@dataclass(kw_only=True)
class LabOptions(CourseOptions):
    """A lab of the course."""

    lab: Annotated[str, argument("its name, topic or number")]
