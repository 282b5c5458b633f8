"""Where the course's two packages are imported from, for processes that are started with a search path of their own."""

from __future__ import annotations

from pathlib import Path

import mlsys_lab

PACKAGE = Path(str(mlsys_lab.__file__)).parent
"""The folder of `mlsys_lab`."""
INSIDE = Path(__file__).parent / "sandbox" / "inside"
"""The only folder of `mlsys_grader` that lies in a sandbox, beside the submission."""
IMPORT_PATH = tuple(dict.fromkeys((str(PACKAGE.parent), str(Path(__file__).parents[1]))))
"""The folders that hold `mlsys_lab` and `mlsys_grader`: two in a checkout, one where both are installed."""
