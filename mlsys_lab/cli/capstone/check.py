"""Check where your layers meet, and bundle the trained run.

Each integration point is a line with its figure. One file of weights gives the same logits on the engine, through the
KV cache and in the reference model; four ranks train as one; a run resumes as if it had not stopped; 32 requests served
together get the tokens of greedy decoding; the sheet's counts are those of the run. When all points hold, bundle.json
in the run's folder has your accepted artifacts, the settings, the sheet and the bits per byte: all that is needed to
repeat the run.

example:
  mlsys-lab capstone check
"""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_lab.cli.capstone.options import RunOptions
from mlsys_lab.cli.spinner import spinner


@dataclass(kw_only=True)
class Arguments(RunOptions):
    """The run to bundle."""


def run(args: Arguments) -> int:
    """Print a line for each point; returns exit code 1 if one does not hold."""
    with spinner("loading your stack"):
        from mlsys_lab.capstone.integration import check_points
        from mlsys_lab.capstone.run import Run, make_bundle
        from mlsys_lab.capstone.stack import load_stack
        from mlsys_lab.stack.workspace import Workspace

        workspace, trained = Workspace.find(), Run(args.folder)
        stack = load_stack(workspace)
    print(stack.report(), end="\n\n", flush=True)
    all_hold = True
    for point in check_points(stack, trained.model if trained.model.exists() else None):
        print(point, flush=True)
        all_hold = all_hold and point.holds
    if not all_hold:
        return 1
    if not (trained.path / "result.json").exists():
        print(f"no bundle: {args.folder} has no trained run")
        return 0
    path = trained.path / "bundle.json"
    make_bundle(trained, stack, workspace).write(path)
    print(f"{path} is the run's bundle")
    return 0
