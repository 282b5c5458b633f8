"""Check a lab: run all its public checks on the saved notebook, without opening it.

The cells that begin with `#| export` run in a fresh process. When every check passes, your code is accepted:
later labs run on it.

examples:
  mlsys-lab check autograd
  mlsys-lab check 01-autograd/01-autograd.ipynb
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mlsys_checks.fresh import SavedReport, check_saved
from mlsys_checks.sides import find_provided
from mlsys_checks.trusted.artifact import (
    Notebook,
    export_cells,
    read_notebook,
    refuse_absent,
    refuse_topics,
    refuse_withheld,
)
from mlsys_lab.cli.app import argument
from mlsys_lab.cli.spinner import spinner
from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import LabInfo, find_lab, released_labs
from mlsys_lab.stack.workspace import Workspace


@dataclass(kw_only=True)
class Arguments:
    """The lab, as a name or as a path."""

    lab: Annotated[str, argument("a lab's name, its folder, or a saved notebook")]


def run(args: Arguments) -> int:
    """Check the lab's saved notebook, print the results, and accept the code when all pass; returns the exit code."""
    path, lab = find_notebook(args.lab)
    notebook = read_notebook(path)
    lab = lab_of(notebook, lab)
    artifact = export_cells(notebook)
    withheld = (*lab.withheld, *lab.traced)
    refuse_withheld(artifact, withheld)
    refuse_absent(artifact, find_provided(lab, withheld))
    refuse_topics(artifact, lab.stack)
    console = Console(highlight=False)
    reports = []
    with spinner(f"checking {path} in a fresh process", console=console) as say:
        for report in check_saved(lab.checks_module, path):
            reports.append(report)
            say(f"{len(reports)} checks done; the last was {report.title}")
    console.print(_table(reports))
    for line in _reasons(reports):
        console.print(escape(line), soft_wrap=True)
    earned, passed = sum(report.earned for report in reports), all(report.passed for report in reports)
    console.print(f"\n{earned:g} of {sum(report.points for report in reports):g} points", style="bold")
    workspace = Workspace.find(path.parent)
    if workspace is None:
        console.print("not noted: this notebook is in no workspace; `mlsys-lab start` makes one")
    else:
        workspace.record(lab.topic, {report.name: report.earned for report in reports})
        if passed:
            workspace.accept(lab.topic, artifact, lab.version)
            console.print(f"accepted: later labs and `mlsys-lab capstone` now run on your {lab.topic}")
    return 0 if passed else 1


def find_notebook(name: str) -> tuple[Path, LabInfo | None]:
    """The notebook for `name` (a lab or a path), and the lab if named; InputError if there is none."""
    path = Path(name)
    if path.is_file() or path.suffix == ".ipynb":
        return path, None
    if path.is_dir():
        return _notebook_in(path), None
    lab = find_lab(name)
    workspace = Workspace.find()
    for root in [Path.cwd(), *([workspace.root] if workspace else [])]:
        for candidate in (root / lab.name / lab.notebook.name, root / lab.notebook.name):
            if candidate.is_file():
                return candidate, lab
    raise InputError(
        f"no notebook of lab {lab.name} here",
        got=Path.cwd(),
        help=f"`mlsys-lab start {lab.topic}`, or give the notebook's path",
    )


def lab_of(notebook: Notebook, named: LabInfo | None) -> LabInfo:
    """The lab of a notebook; InputError if it is not of this course, or not the named lab."""
    labs = released_labs()
    by_topic = {lab.topic: lab for lab in labs}
    if named is not None and (not notebook.topics or named.topic in notebook.topics):
        return named
    if named is not None:
        raise InputError(
            f"{notebook.name} is not the notebook of lab {named.name}",
            got=f"one that checks {', '.join(notebook.topics)}",
            expected=f'a line `check = lab("{named.topic}")`',
        )
    if found := [by_topic[topic] for topic in notebook.topics if topic in by_topic]:
        return found[0]
    if stem := [lab for lab in labs if not notebook.topics and f"{lab.name}.ipynb" == notebook.name]:
        return stem[0]
    known = ", ".join(lab.name for lab in labs) or "none is released"
    got = f"one that checks {', '.join(notebook.topics)}" if notebook.topics else "no line `check = lab(…)`"
    raise InputError(f"{notebook.name} is not a notebook of this course", got=got, expected=f"one of the labs: {known}")


def _notebook_in(folder: Path) -> Path:
    named = folder / f"{folder.resolve().name}.ipynb"
    if named.is_file():
        return named
    found = sorted(folder.glob("*.ipynb"))
    if len(found) != 1:
        what = "no notebook" if not found else "more than one notebook"
        raise InputError(f"{what} in {folder}", expected=named.name, help="give the notebook's path")
    return found[0]


def _table(reports: list[SavedReport]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "check", "task", "points", "time"):
        table.add_column(heading, justify="right" if heading in ("points", "time") else "left")
    for report in reports:
        sign, style = ("✓", "green") if report.passed else ("○", "yellow") if report.unfinished else ("✗", "red")
        table.add_row(
            f"[{style}]{sign}[/]",
            escape(report.name),
            escape(report.title),
            f"{report.earned:g}/{report.points:g}",
            f"{report.time_s * 1e3:.0f} ms",
        )
    return table


def _reasons(reports: list[SavedReport]) -> list[str]:
    """Lines with the reasons for lost points; a reason that several checks share appears once."""
    failed = [report for report in reports if not report.passed]
    if failed and failed[0].refused:
        return ["", failed[0].what]
    lines = []
    alike: dict[tuple[str, str], list[SavedReport]] = {}
    for report in failed:
        if not report.unfinished:
            alike.setdefault((report.what, report.got), []).append(report)
    for first, *others in alike.values():
        if others:
            first = replace(first, name=", ".join(one.name for one in (first, *others)), case="", given="", hint="")
        case = f" (case: {first.case})" if first.case else ""
        lines += ["", f"{first.name}, not right yet{case}: {first.what}", *_facts(first)]
    if to_do := [report for report in failed if report.unfinished]:
        lines += ["", f"still to do: {', '.join(report.name for report in to_do)}"]
        for report in [report for report in to_do if report.hint] or to_do[:1]:
            lines += [f"{report.name}: {report.what}", *_facts(report)]
    return lines


def _facts(report: SavedReport) -> list[str]:
    facts = (("given", report.given), ("got", report.got), ("expected", report.expected), ("hint", report.hint))
    return [f"  {label + ':':<9} " + said.replace("\n", "\n" + " " * 12) for label, said in facts if said]
