"""Run bundles of the capstone again, and print the entry of each for the leaderboard.

examples:
  mlsys-grader leaderboard book/data/bundles/ada.json      two CPU minutes; the entry for book/data/leaderboard.toml

The bundle's code runs in the sandbox, and trains there from a secret seed. What counts is decided outside: torch trains
the same settings, the weights are held against its, the sheet's counts are computed again, and the time is the
grader's. Exits with 1 for a bundle that is refused, with both numbers in one line.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Annotated

from mlsys_grader.commands import CourseOptions
from mlsys_lab.cli.app import argument
from mlsys_lab.errors import InputError

MAX_BYTES = 512 << 10
"""Largest bundle: the solved labs of all layers take less than half."""


@dataclass(kw_only=True)
class Arguments(CourseOptions):
    """The bundles."""

    bundles: Annotated[list[Path], argument("files that `mlsys-lab capstone` wrote")]


def run(args: Arguments) -> int:
    """Print the entry of each bundle, and a line for each that is refused."""
    from mlsys_grader.judging.verdict import to_line

    refused = 0
    for path in args.bundles:
        try:
            print(_enter(path))
        except InputError as error:
            refused += 1
            print(to_line(f"{path}: {error}"), file=sys.stderr)
    return 1 if refused else 0


def _enter(path: Path) -> str:
    """The entry of a bundle as TOML; InputError for one that is refused."""
    from mlsys_grader.leaderboard.rerun import rerun
    from mlsys_lab.capstone.bundle import Bundle
    from mlsys_lab.hardware.cpu import cpu_name

    if path.is_file() and (size := path.stat().st_size) > MAX_BYTES:
        raise InputError("a bundle that is too large", got=f"{size:,} bytes", expected=f"at most {MAX_BYTES:,}")
    bundle = Bundle.read(path)
    figures = rerun(bundle)
    entry = {
        "name": path.stem,
        "link": "",
        "date": date.today(),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "text": bundle.settings.data[:8],
        "own_layers": len(bundle.artifacts),
        "machine": cpu_name(),
        **{name: float(f"{value:.4g}") for name, value in asdict(figures).items()},
    }
    lines = (f"{key} = {value if isinstance(value, date) else json.dumps(value)}" for key, value in entry.items())
    return "\n".join(["[[entries]]", *lines])
