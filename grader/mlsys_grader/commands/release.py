"""Build labs/ and the README's table of labs from solutions/.

examples:
  mlsys-grader release            solutions/NN-topic/NN-topic.py -> labs/NN-topic/NN-topic.ipynb
  mlsys-grader release --check    in CI: has somebody forgotten to release?
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mlsys_grader.commands import CourseOptions
from mlsys_grader.course.files import write_atomically
from mlsys_grader.release.table import replace_table, write_table
from mlsys_lab.cli.app import flag, option
from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import read_lab


@dataclass(kw_only=True)
class Arguments(CourseOptions):
    """The checkout, and whether to write."""

    check: Annotated[bool, flag("--check", "write nothing; exit 1 when labs/ is not up to date")] = False
    project: Annotated[Path, option("the checkout", "DIR")] = Path()


def run(args: Arguments) -> int:
    """Build labs/ and the README's table, or tell whether they are up to date."""
    from mlsys_grader.release.build import find_sources
    from mlsys_grader.release.build import release as build

    project = args.project.absolute()
    if not (project / "solutions").is_dir():
        raise InputError(
            "no solutions to release", got=project, expected="a checkout of the course", help="--project DIR"
        )
    stale = []
    folders = find_sources(project / "solutions")
    for folder in folders:
        built = build(folder, project / "pyproject.toml")
        changed = built.stale(project / "labs")
        stale += ["labs/"] * bool(changed)
        if not args.check:
            built.write(project / "labs")
        word = ("stale" if args.check else "written") if changed else "up to date"
        print(f"{built.name}: {word}{': ' + ', '.join(changed) if changed else ''}")
    if (project / "README.md").is_file() and _table_is_stale(project / "README.md", folders, write=not args.check):
        stale.append("README.md")
    if args.check and stale:
        raise InputError(f"{stale[0]} is not what solutions/ gives", help="mlsys-grader release")
    return 0


def _table_is_stale(readme: Path, folders: list[Path], *, write: bool) -> bool:
    """Whether the README's table of labs is not that of the labs in `folders`; puts it right if it is to `write`."""
    text = readme.read_text(encoding="utf-8")
    wanted = replace_table(text, write_table(read_lab(folder) for folder in folders))
    if wanted != text and write:
        write_atomically(readme, wanted.encode())
    print(f"README.md: {'up to date' if wanted == text else 'written' if write else 'stale'}")
    return wanted != text
