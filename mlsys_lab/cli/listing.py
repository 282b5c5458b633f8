"""List the labs: what each is about, its minutes and points, and how far you are.

example:
  mlsys-lab list
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from mlsys_lab.stack.labinfo import LabInfo, require_labs
from mlsys_lab.stack.workspace import Workspace


@dataclass
class Arguments:
    """None."""


def run(args: Arguments) -> int:
    """Print a table of the released labs; returns exit code 0."""
    labs = require_labs()
    workspace = Workspace.find()
    table = Table(box=None, pad_edge=False)
    for heading in ("lab", "title", "minutes", "points", "you"):
        table.add_column(heading, justify="right" if heading in ("minutes", "points") else "left")
    for lab in labs:
        table.add_row(lab.name, lab.title, str(lab.minutes), f"{lab.points:g}", _state(lab, workspace))
    console = Console()
    console.print(table)
    new = [lab for lab in labs if not _state(lab, workspace)]
    words = (
        f"start one with: mlsys-lab start {new[0].topic}" if new else f"check one with: mlsys-lab check {labs[0].topic}"
    )
    console.print(f"\n{words}", highlight=False)
    return 0


def _state(lab: LabInfo, workspace: Workspace | None) -> str:
    record = workspace.progress().get(lab.topic, {}) if workspace else {}
    if "accepted" in record:
        return "accepted"
    if workspace and (workspace.root / lab.name).is_dir():
        return "started"
    return ""
