"""Train the planned model on your stack, from the last checkpoint on.

The ranks run on the engine, collectives and sharded optimizer of your labs, on the book's text, and take turns on one
thread; with --backend gloo each is a process. A checkpoint is saved every few steps. A run that is stopped, by Ctrl-C
or otherwise, loses no more than the steps since its last checkpoint, and continues with the same command as if it had
not stopped. At its end, the model is exported for `mlsys-lab serve`, and its bits per byte are measured on text that is
held out.

examples:
  mlsys-lab capstone train
  mlsys-lab capstone train --run replicated --swap data_parallel=replicated-ring
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from mlsys_lab.cli.app import option
from mlsys_lab.cli.capstone.options import SwapOptions
from mlsys_lab.cli.export import export
from mlsys_lab.cli.spinner import spinner
from mlsys_lab.cli.swaps import read_swaps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlsys_lab.capstone.run import Progress, Run
    from mlsys_lab.parallel.train.data import Dataset

LINES = 10
"""Lines of progress, where no bar is shown."""


@dataclass(kw_only=True)
class Arguments(SwapOptions):
    """The run, and how its ranks run."""

    backend: Annotated[Literal["threads", "gloo"], option("ranks as threads that take turns, or processes")] = "threads"


def run(args: Arguments) -> int:
    """Train to the last step, export and evaluate; returns exit code 0."""
    from mlsys_lab.capstone.run import Run

    planned, swaps = Run(args.folder), read_swaps(args.swap)
    settings, _ = planned.settings, planned.sheet
    with spinner("loading your stack") as say:
        from mlsys_lab.capstone.run import check_sheet, train_run
        from mlsys_lab.capstone.stack import load_stack
        from mlsys_lab.capstone.swaps import load_swapped
        from mlsys_lab.stack.workspace import Workspace

        workspace = Workspace.find()
        check_sheet(planned, load_stack(workspace))
        stack = load_swapped(workspace, swaps)
        say("reading the book's text")
        data = settings.read_data()
    print(stack.report(), flush=True)
    done, steps = planned.progress.step, settings.train.steps
    if done:
        print(f"{done} of {steps} steps are taken: continuing from {args.folder / 'checkpoints'}", flush=True)
    _show(train_run(planned, stack, workspace, swaps, data.train, backend=args.backend), done, steps)
    if not planned.model.exists():
        _export(planned)
    _evaluate(planned, data)
    return 0


def _show(segments: Iterable[Progress], done: int, steps: int) -> None:
    """A bar on a terminal, a few lines elsewhere."""
    console, every = Console(stderr=True), -(-steps // LINES)
    columns = BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn()
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"step {done} of {steps}", total=steps, completed=done)
        for step, losses, _ in segments:
            said = f"step {step} of {steps}  loss {losses[-1]:.3f}"
            bar.update(task, completed=step, description=said)
            if not console.is_terminal and (step // every > done // every or step == steps):
                print(said, flush=True)
            done = step


def _export(trained: Run) -> None:
    """Write the model's folder, whole or not at all."""
    part = trained.path / "model.part"
    shutil.rmtree(part, ignore_errors=True)
    _, parameters = export(trained.path / "checkpoints", part)
    part.rename(trained.model)
    print(f"{trained.model} has the trained model: {parameters:,} parameters")


def _evaluate(trained: Run, data: Dataset) -> None:
    from mlsys_lab.capstone.settings import bits_per_byte
    from mlsys_lab.models import load

    result = trained.read_record("result.json")
    if result is None:
        with spinner("reading the text that is held out"):
            bits = bits_per_byte(load(trained.model).eval(), data)
        result = {"bits_per_byte": bits, "cpu_s": trained.progress.cpu_s}
        trained.write_record("result.json", result)
    predicted_s = trained.settings.train.steps * trained.sheet["training_step_s"]
    print(f"{result['bits_per_byte']:.4f} bits per byte on text that is held out")
    print(f"{result['cpu_s'] / 60:.2g} CPU minutes, predicted {predicted_s / 60:.2g}")
