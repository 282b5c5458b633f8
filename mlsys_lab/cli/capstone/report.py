"""Show predictions next to counts and clock, with an HTML page.

A few training steps run on the planned ranks, and one sequence is generated; the page, report.html in the run's folder,
also has the losses and a waterfall from the bound to the measurement. --swap measures the run with other layers too:
for `data_parallel=replicated-ring` and `replicated-halving-doubling` with what lab 16's `predict_swap` predicts.

examples:
  mlsys-lab capstone report
  mlsys-lab capstone report --swap data_parallel=replicated-ring
  mlsys-lab capstone report --swap engine=reference collectives=reference
"""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_lab.cli.capstone.options import SwapOptions
from mlsys_lab.cli.spinner import spinner
from mlsys_lab.cli.swaps import read_swaps


@dataclass(kw_only=True)
class Arguments(SwapOptions):
    """The run, and layers to swap."""


def run(args: Arguments) -> int:
    """Print the tables and write the page; returns exit code 1 if a count is not the predicted one."""
    from mlsys_lab.capstone.run import Run

    planned, swaps = Run(args.folder), read_swaps(args.swap)
    settings, sheet = planned.settings, planned.sheet
    with spinner("loading your stack") as say:
        from mlsys_lab.capstone.gains import compare_swapped, measure_swapped, predict_swapped
        from mlsys_lab.capstone.measurement import compare
        from mlsys_lab.capstone.report import Trained, render
        from mlsys_lab.capstone.run import check_sheet
        from mlsys_lab.capstone.stack import load_stack
        from mlsys_lab.capstone.swaps import load_swapped
        from mlsys_lab.stack.workspace import Workspace, write_atomic

        workspace = Workspace.find()
        stack = load_stack(workspace)
        check_sheet(planned, stack)
        swapped = load_swapped(workspace, swaps)
        changed = predict_swapped(stack, settings, planned.calibration, sheet, swaps)
        say("reading the book's text")
        ids, weights = settings.read_data().train, planned.weights()
        say("measuring")
        measured = measure_swapped(stack, settings, weights, ids, {})
        rows, gains = compare(sheet, measured), []
        if swaps:
            say("measuring with the swapped layer")
            gains = compare_swapped(sheet, changed, measured, measure_swapped(swapped, settings, weights, ids, swaps))
    print(stack.report(), end="\n\n")
    print(f"{'cost':44} {'predicted':>16} {'measured':>16}")
    for row in rows:
        print(row)
    if gains:
        print(f"\n{'swapped: ' + ', '.join(args.swap or []):44} {'predicted':>28}   {'measured':>28}")
        for gain in gains:
            was, now, found, then = map(gain.format, gain[1:])
            print(f"{gain.cost.name:44} {was:>12} -> {now:>12}   {found:>12} -> {then:>12} {gain.cost.unit}")
    result = planned.read_record("result.json") or {}
    page = planned.path / "report.html"
    trained = Trained(planned.progress.losses, result.get("bits_per_byte"))
    write_atomic(page, render(stack, rows, planned.calibration, trained, gains))
    planned.write_record("measured.json", measured)
    equal, counts = ([row for row in rows if row.is_equal in kinds] for kinds in ((True,), (True, False)))
    print(f"\n{len(equal)} of {len(counts)} counts are as predicted; the page is {page}")
    return 0 if len(equal) == len(counts) else 1
