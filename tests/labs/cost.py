"""What a lab costs to write: its hand-written files and lines. `python -m tests.labs.cost scaling-laws`"""

from __future__ import annotations

import sys
from pathlib import Path

from mlsys_lab.stack.labinfo import find_lab
from tests.labs.harness import PROJECT

HOMES = ("solutions", "grader/mlsys_checks/trusted", "grader/mlsys_checks/sandboxed", "tests/labs")


def files_of(topic: str) -> list[Path]:
    """Every file of a lab that somebody wrote: in each of `HOMES` the folder or the module that bears its name."""
    lab = find_lab(topic)
    names = (lab.name, lab.topic.replace("-", "_"))
    homes = [home for folder in HOMES for home in (PROJECT / folder).iterdir() if home.stem in names]
    files = [path for home in homes for path in (home, *home.rglob("*"))]
    return sorted(path for path in files if path.suffix in (".py", ".toml", ".diff"))


if __name__ == "__main__":
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files_of(sys.argv[1])}
    for path, count in lines.items():
        print(f"{count:6}  {path.relative_to(PROJECT)}")
    print(f"{sum(lines.values()):6}  lines in {len(lines)} files")
