"""How a run of the grader judges, and the engine that it asks for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.engines import Engine
from mlsys_grader.engines.local import LocalEngine
from mlsys_grader.sandbox.backend import BACKENDS, NONE, choose
from mlsys_grader.sandbox.sandbox import Sandbox


@dataclass(frozen=True)
class Options:
    """How to grade: workers that judge, stretch of time limits, no sandbox, all over again; which engine, and where.

    `sandbox` is one of `sandbox.backend.BACKENDS`, or None for the first that works.
    """

    workers: int = 0
    time_factor: float = 1.0
    unsafe: bool = False
    again: bool = False
    engine: str = "local"
    address: str | None = None
    sandbox: str | None = None

    @property
    def threads(self) -> int:
        """Workers, one per core unless told."""
        return self.workers or os.cpu_count() or 1

    @property
    def sandbox_name(self) -> str:
        """What records and audit log say that submissions ran in."""
        return NONE if self.unsafe else self.sandbox or BACKENDS[0]

    def settled(self) -> Options:
        """The same, with the sandbox that will be used. Raises `MissingToolError` where there is none."""
        return self if self.unsafe else replace(self, sandbox=choose(self.sandbox))


@contextmanager
def engine_for(lab: GradedLab, options: Options) -> Iterator[Engine]:
    """The engine that the options name, running."""
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
        with Sandbox(
            lab, unsafe=options.unsafe, backend=options.sandbox, spares=options.threads, wait=False
        ) as sandbox:
            yield LocalEngine(sandbox, workers=options.threads, time_factor=options.time_factor)
