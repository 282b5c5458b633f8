"""Fill in the prediction sheet of a run, and fix its settings.

The functions of your labs predict what a training step and a generated sequence cost: FLOPs, bytes, messages, memory
and, from a few seconds of calibration of this machine, seconds. `train` starts once there is a sheet. Planning again
with the same settings calibrates again and keeps what has been trained. For a model or a learning rate of your own,
edit a copy of a run's settings.json and plan another run with --settings.

examples:
  mlsys-lab capstone plan
  mlsys-lab capstone plan --run second --seed 1
  mlsys-lab capstone plan --run wide --settings wide.json
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mlsys_lab.cli.app import option
from mlsys_lab.cli.capstone.options import RunOptions
from mlsys_lab.cli.spinner import spinner


@dataclass(kw_only=True)
class Arguments(RunOptions):
    """The model, its training, and the folder."""

    steps: Annotated[int, option("training steps of 32 sequences", "N")] = 500
    seed: Annotated[int, option("of the initial weights and of the order of the data", "N")] = 0
    ranks: Annotated[int, option("ranks that train together", "N")] = 4
    model: Annotated[Literal["standard", "tiny"], option("about a million parameters, or twenty thousand")] = "standard"
    settings: Annotated[Path | None, option("all of these, from a file like a run's settings.json", "FILE")] = None


def run(args: Arguments) -> int:
    """Print the stack and the sheet; returns exit code 0."""
    with spinner("loading your stack") as say:
        from mlsys_lab.capstone.run import plan
        from mlsys_lab.capstone.settings import make_settings, read_settings
        from mlsys_lab.capstone.sheet import COSTS
        from mlsys_lab.capstone.stack import load_stack

        stack = load_stack()
        say("reading the book's text")
        if args.settings is None:
            settings = make_settings(args.model, args.steps, args.seed, args.ranks)
        else:
            settings = read_settings(args.settings)
        say("calibrating this machine")
        made = plan(args.folder, stack, settings)
    print(stack.report(), end="\n\n")
    print(f"{'cost':44} {'predicted':>16} {'unit':8}  by")
    for key, cost in COSTS.items():
        digits = ",.4g" if cost.kind == "seconds" else ",.0f"
        print(f"{cost.name:44} {made.sheet[key]:>16{digits}} {cost.unit:8}  {cost.source}")
    steps, ranks = settings.train.steps, settings.ranks
    minutes = steps * made.sheet["training_step_s"] / 60
    print(f"\npredicted for {steps} steps on {ranks} ranks that take turns: {minutes:.2g} minutes")
    print(f"written to {args.folder}; next: mlsys-lab capstone train{_run_option(args)}")
    return 0


def _run_option(args: Arguments) -> str:
    return "" if args.folder == Arguments.folder else f" --run {args.folder}"
