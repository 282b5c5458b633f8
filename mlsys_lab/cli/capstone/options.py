"""Options of the capstone's commands: the run's folder, and layers to swap."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mlsys_lab.cli.app import option

FOLDER = Path("capstone-run")


@dataclass(kw_only=True)
class RunOptions:
    """The folder of a run."""

    folder: Annotated[Path, option("the run's folder", "FOLDER", name="--run")] = FOLDER


@dataclass(kw_only=True)
class SwapOptions(RunOptions):
    """The folder, and layers to swap."""

    swap: Annotated[
        list[str] | None,
        option("swap a layer for solved or reference; data_parallel also for replicated-ring", "LAYER=KIND..."),
    ] = None
