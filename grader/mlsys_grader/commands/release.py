"""Build labs/ from solutions/.

examples:
  mlsys-grader release            solutions/NN-topic/NN-topic.py -> labs/NN-topic/NN-topic.ipynb
  mlsys-grader release --check    in CI: has somebody forgotten to release?
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mlsys_lab.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when labs/ is not up to date")
    parser.add_argument(
        "--project", type=Path, default=Path(), metavar="DIR", help="the checkout (default: the current folder)"
    )


def run(args: argparse.Namespace) -> int:
    """Build labs/, or tell whether it is up to date."""
    from mlsys_grader.release.build import release as build
    from mlsys_grader.release.build import sources

    project = args.project.absolute()
    if not (project / "solutions").is_dir():
        raise InputError(
            "no solutions to release", got=project, expected="a checkout of the course", help="--project DIR"
        )
    stale = 0
    for folder in sources(project / "solutions"):
        built = build(folder, project / "pyproject.toml")
        changed = built.stale(project / "labs")
        stale += len(changed)
        if not args.check:
            built.write(project / "labs")
        word = ("stale" if args.check else "written") if changed else "up to date"
        print(f"{built.name}: {word}{': ' + ', '.join(changed) if changed else ''}")
    if args.check and stale:
        raise InputError("labs/ is not what solutions/ gives", help="mlsys-grader release")
    return 0
