"""What `make` would do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def told_by_make(project: Path, *command: str) -> str:
    """The commands of a target, as a shell of its own would see them: also where the tests run under `make`."""
    own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "PYTEST_ARGS")}
    run = ["make", "--no-print-directory", "-n", *command]
    return subprocess.run(run, cwd=project, env=own, capture_output=True, text=True, check=True).stdout
