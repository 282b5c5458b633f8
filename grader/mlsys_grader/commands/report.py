"""How the class did: pass rate and commonest failure per check, slowest submissions.

examples:
  mlsys-grader report autograd                          a table
  mlsys-grader report autograd --to reports             and a page with plots, reports/01-autograd.html
  mlsys-grader report autograd --to public --no-names   the same to show around: students are numbered
  mlsys-grader report autograd --json summary.json      all of it for other programs

Figures come from the grading records. A reason may quote what a student's code said; --no-names does not read it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlsys_grader.commands import LabOptions
from mlsys_grader.commands.common import find_chosen_lab, read_records, require_folder, write_text
from mlsys_grader.course.folder import Course
from mlsys_lab.cli.app import flag, option

if TYPE_CHECKING:
    from mlsys_grader.reports.summary import Summary


@dataclass(kw_only=True)
class Arguments(LabOptions):
    """The lab, and the files to write."""

    to: Annotated[Path | None, option("write DIR/LAB.html, a page with plots", "DIR")] = None
    json: Annotated[Path | None, option("write the figures", "FILE")] = None
    no_names: Annotated[bool, flag("--no-names", "number the students")] = False


def run(args: Arguments) -> int:
    """Print the summary; write the page and the figures where asked to."""
    from mlsys_grader.reports.summary import summarise
    from mlsys_grader.reports.summary_page import render_summary

    lab, course = find_chosen_lab(args), Course.open(args.course)
    require_folder(args.json)
    summary = summarise(read_records(course, lab), lab, names=not args.no_names)
    if args.json:
        write_text(args.json, json.dumps(asdict(summary), indent=1, ensure_ascii=False) + "\n")
    if args.to:
        write_text(args.to / f"{lab.name}.html", render_summary(summary))
    _print(summary)
    if args.to:
        print(f"\n{args.to / lab.name}.html has plots and more failures")
    return 0


def _print(summary: Summary) -> None:
    console = Console(highlight=False)
    print(
        f"{summary.lab}: {summary.students} students, mean {summary.mean:.1f} of {summary.points:g}, "
        f"median {summary.median:g}, {summary.full} with full marks"
    )
    print(f"{'tenths of the points:':<24}{' '.join(f'{count:>3}' for count in summary.bins)}\n")
    table = Table(box=None, pad_edge=False, expand=True)
    table.add_column("check", no_wrap=True)
    table.add_column("passed", no_wrap=True, justify="right")
    table.add_column("", no_wrap=True, justify="right")
    table.add_column("commonest failure", no_wrap=True, overflow="ellipsis", ratio=1)
    for check in summary.checks:
        first = check.failures[0] if check.failures else None
        told = Text(first.reason) if first else Text("")
        table.add_row(Text(check.name), f"{100 * check.rate:.0f} %", f"{first.students} ×" if first else "", told)
    console.print(table)
    for check in summary.checks:
        if (timed := check.performance) is not None:
            print(f"{check.name}, performance: {timed.measured} measured, {timed.unmeasured} not measured")
    if summary.failed_outright:
        console.print("\nlost as a whole, for one reason")
        for reason, who in summary.failed_outright:
            console.print(Text(f"  {len(who)} × {reason}: {', '.join(who)}"), soft_wrap=True)
    if summary.suspects:
        console.print("\nto be looked into: timed code that did what no honest code does")
        for student, name, why in summary.suspects:
            console.print(Text(f"  {student}: {name}: {why}"), soft_wrap=True)
    console.print("\nslowest, seconds in their own code")
    for student, time_s in summary.slowest:
        console.print(Text(f"  {time_s:6.1f}  {student}"))
