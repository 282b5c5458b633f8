"""Open the engine that the options of a run name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.engines import Engine
from mlsys_grader.engines.local import LocalEngine
from mlsys_grader.judging.options import Options
from mlsys_grader.sandbox.sandbox import Sandbox


@contextmanager
def open_engine(lab: GradedLab, options: Options) -> Iterator[Engine]:
    """Open the engine that `options` names, for the block."""
    if options.engine == "ray":
        from mlsys_grader.engines.ray import RayEngine

        cluster = RayEngine(
            lab,
            workers=options.threads,
            time_factor=options.time_factor,
            address=options.address,
            unsafe=options.unsafe,
            backend=options.sandbox,
        )
        with cluster as engine:
            yield engine
    else:
        with (
            Sandbox(lab, unsafe=options.unsafe, backend=options.sandbox, spares=options.threads, wait=False) as sandbox,
            LocalEngine(sandbox, workers=options.threads, time_factor=options.time_factor) as engine,
        ):
            yield engine
