"""Serve the trained model over HTTP on your scheduler and KV cache.

This is `mlsys-lab serve` with your model and your stack: open the address that it prints to chat and to watch the
scheduler, or use it with any client of OpenAI's API.

examples:
  mlsys-lab capstone serve
  mlsys-lab capstone serve --port 9000 --swap scheduler=reference
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mlsys_lab.cli import serve
from mlsys_lab.cli.app import option
from mlsys_lab.cli.capstone.options import SwapOptions
from mlsys_lab.cli.swaps import read_swaps
from mlsys_lab.errors import InputError


@dataclass(kw_only=True)
class Arguments(SwapOptions):
    """The run, layers to swap, and where the server listens."""

    port: Annotated[int, option("0 takes a free one", "N")] = 8000


def run(args: Arguments) -> int:
    """Serve until a signal; returns exit code 0."""
    from pathlib import Path

    from mlsys_lab.capstone.run import Run
    from mlsys_lab.capstone.serving import write_served
    from mlsys_lab.capstone.stack import load_stack
    from mlsys_lab.stack.workspace import Workspace

    planned, swaps = Run(args.folder), read_swaps(args.swap)
    if not planned.model.exists():
        help_ = "`mlsys-lab capstone train` trains it to its last step"
        raise InputError("no trained model here", got=planned.model, help=help_)
    workspace = Workspace.find() or Workspace(Path.cwd())
    print(load_stack(workspace, swaps).report(), flush=True)
    file = planned.path / "stack.py"
    write_served(file, workspace, swaps)
    return serve.run(serve.Arguments(model=str(planned.model), scheduler=str(file), port=args.port))
