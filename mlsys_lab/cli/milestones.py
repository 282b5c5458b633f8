"""Reproduce eight published numbers, from backpropagation to speculative decoding, with the code of your labs.

Each milestone runs on the layers of your stack: your accepted labs, or the solved lab where there is none of yours, and
prints the published number, what the code gives, and what of the paper is a formula only. Without a name, all of them
run. --swap runs a layer of the solved labs or of the reference package in place of yours.

examples:
  mlsys-lab milestones
  mlsys-lab milestones speculative-decoding
  mlsys-lab milestones ring-all-reduce --swap collectives=reference
"""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from mlsys_lab.cli.app import argument, option
from mlsys_lab.cli.spinner import spinner
from mlsys_lab.cli.swaps import read_swaps

if TYPE_CHECKING:
    from mlsys_lab.capstone.milestones import Result

COLUMNS = 100


@dataclass(kw_only=True)
class Arguments:
    """The milestone, and layers to swap."""

    name: Annotated[str | None, argument("backpropagation, ring-all-reduce, … (all by default)")] = None
    swap: Annotated[list[str] | None, option("swap a layer for solved or reference", "LAYER=KIND...")] = None


def run(args: Arguments) -> int:
    """Print each milestone's figures; returns exit code 1 if any is not reproduced."""
    from mlsys_lab.capstone.milestones import MILESTONES, find_milestone, reproduce
    from mlsys_lab.capstone.stack import load_stack

    chosen = [find_milestone(args.name)] if args.name else MILESTONES
    swaps = read_swaps(args.swap)
    reproduced = 0
    with spinner("loading your stack") as say:
        stack = load_stack(swaps=swaps)
        for milestone in chosen:
            say(f"{milestone.name} ({milestone.year})")
            result = reproduce(milestone, stack)
            _print(result)
            reproduced += result.is_reproduced
    if len(chosen) > 1:
        print(f"{reproduced} of {len(chosen)} milestones reproduced")
    return 0 if reproduced == len(chosen) else 1


def _print(result: Result) -> None:
    from mlsys_lab.capstone.milestones.milestone import format_number

    milestone = result.milestone
    print(f"{milestone.year}  {milestone.name}  ({result.time_s:.1f} s)")
    print(_wrap(milestone.title))
    print(_wrap(f"source: {milestone.source}"))
    for figure in result.figures:
        kind, got = "published" if figure.is_published else "must be", format_number(figure.obtained)
        print(f"    {figure.what:<52}  {kind:>9} {figure.condition:<16}  got {got:<9}  ({figure.reason})")
    for field, owner in result.code.items():
        print(f"  code that ran: {field}: {owner}")
    print(_wrap(f"scope: {milestone.scope}"))
    if result.problem:
        sys.stdout.flush()
        print(f"mlsys-lab: {result.problem}", file=sys.stderr)
    print()


def _wrap(text: str) -> str:
    text = text.replace(" %", "\N{NO-BREAK SPACE}%")
    return textwrap.fill(text, COLUMNS, initial_indent="  ", subsequent_indent="    ")
