"""Where the course's packages are imported from, for processes that are started with a search path of their own."""

from __future__ import annotations

from pathlib import Path

import mlsys_checks
import mlsys_lab

PACKAGE = Path(str(mlsys_lab.__file__)).parent
"""The folder of `mlsys_lab`."""
CHECKS = Path(str(mlsys_checks.__file__)).parent
"""The folder of `mlsys_checks`."""
INSIDE = Path(__file__).parent / "sandbox" / "inside"
"""The only folder of `mlsys_grader` that lies in a sandbox, next to the submission."""
IMPORT_PATH = tuple(dict.fromkeys(map(str, (PACKAGE.parent, CHECKS.parent, Path(__file__).parents[1]))))
"""The folders that hold the three packages: two in a checkout, one where they are installed."""
