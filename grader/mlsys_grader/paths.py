"""Import paths of the course's packages, for processes with a search path of their own."""

from __future__ import annotations

from pathlib import Path

import mlsys_checks
import mlsys_lab

PACKAGE = Path(str(mlsys_lab.__file__)).parent
CHECKS = Path(str(mlsys_checks.__file__)).parent
INSIDE = Path(__file__).parent / "sandbox" / "inside"
"""The only folder of `mlsys_grader` that is visible in a sandbox."""
IMPORT_PATH = tuple(dict.fromkeys(map(str, (PACKAGE.parent, CHECKS.parent, Path(__file__).parents[1]))))
"""Folders that hold the three packages: two in a checkout, one where they are installed."""
