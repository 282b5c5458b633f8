"""Start a lab: put its notebook into a folder of your own.

The folder you are in becomes your workspace, unless it is in one already. An existing lab folder is never
overwritten.

examples:
  mlsys-lab start autograd
  mlsys-lab start 1 --into ~/mlsys
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mlsys_lab.cli.app import argument, option
from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import LabInfo, find_lab
from mlsys_lab.stack.workspace import Workspace

AGENTS = "AGENTS.md"


@dataclass(kw_only=True)
class Arguments:
    """The lab, and the workspace if it is not the current folder."""

    lab: Annotated[str, argument("01-autograd, autograd or 1")]
    into: Annotated[Path | None, option("your workspace (by default the one you are in, or here)", "DIR")] = None


def run(args: Arguments) -> int:
    """Copy the lab's released notebook into the workspace and print what to do next; returns exit code 0."""
    lab = find_lab(args.lab)
    existing = Workspace.find(args.into)
    root = args.into or (existing.root if existing else Path.cwd())
    target = copy_lab(lab, root)
    Workspace.create(existing.root if existing else root)
    print(f"{lab.name}: {lab.title} ({lab.minutes} minutes, {lab.points:g} points)")
    print(f"notebook: {target / lab.notebook.name}")
    if lab.prerequisite_chapters:
        print(f"read before: {', '.join(lab.prerequisite_chapters)}")
    if lab.prerequisite_labs:
        print(f"builds on: {', '.join(lab.prerequisite_labs)}")
    print(f"next: jupyter lab {_short(target / lab.notebook.name)}")
    return 0


def copy_lab(lab: LabInfo, root: Path) -> Path:
    """Copy a released lab (all but lab.toml) to `root/NN-topic`; `InputError`, and no partial copy, on failure.

    AGENTS.md, which tells AI assistants how to help a learner, goes to `root` unless it has one.
    """
    target = root / lab.name
    if target.exists():
        help_ = f"go on with {_short(target / lab.notebook.name)}, or move it away to begin again"
        raise InputError(f"lab {lab.name} has been started already", got=target, help=help_)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{lab.name}-") as scratch:
            copy = Path(scratch) / lab.name
            left_out = shutil.ignore_patterns("lab.toml", ".*", "__pycache__")
            shutil.copytree(lab.folder, copy, ignore=left_out, copy_function=shutil.copyfile)
            copy.chmod(copy.stat().st_mode | stat.S_IRWXU)  # an installed package may be read-only; the copy is not
            copy.rename(target)
        if (guide := lab.folder.parent / AGENTS).is_file() and not (root / AGENTS).exists():
            shutil.copyfile(guide, root / AGENTS)
    except OSError as error:
        raise InputError(
            f"cannot write into {root}", got=error.strerror, help="choose another folder with --into DIR"
        ) from None
    return target


def _short(path: Path) -> str:
    """The path to type here: relative to the current folder where it is inside that."""
    return os.path.relpath(path) if path.resolve().is_relative_to(Path.cwd()) else str(path)
