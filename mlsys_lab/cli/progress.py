"""Show your progress: points and passed checks per lab, and which of your code later labs run on.

example:
  mlsys-lab progress
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import LabInfo, require_labs
from mlsys_lab.stack.workspace import Workspace

BAR = 20


@dataclass
class Arguments:
    """None."""


def run(args: Arguments) -> int:
    """Print a table of the labs that were started or checked; returns exit code 0."""
    workspace = Workspace.find()
    if workspace is None:
        raise InputError("no workspace here", help="`mlsys-lab start LAB` makes one, or go to the folder of your labs")
    records = workspace.progress()
    table = Table(box=None, pad_edge=False)
    for heading in ("lab", "progress", "points", "checks passed", "accepted"):
        table.add_column(heading, justify="right" if heading in ("points", "checks passed") else "left")
    for lab in require_labs():
        table.add_row(*_row(lab, records.get(lab.topic, {})))
    console = Console(highlight=False)
    console.print(f"workspace: {workspace.root}")
    console.print(table)
    return 0


def _row(lab: LabInfo, record: dict[str, Any]) -> list[str]:
    earned = [entry["points"] for entry in record.get("checks", {}).values()]
    points = min(sum(earned), lab.points)
    filled = round(BAR * points / lab.points)
    accepted = str(record.get("accepted", {}).get("at", ""))[:10]
    passed = str(sum(points > 0 for points in earned))
    return [lab.name, "█" * filled + "░" * (BAR - filled), f"{points:g}/{lab.points:g}", passed, accepted]
