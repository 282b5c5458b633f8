"""How a run of the grader judges."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from mlsys_grader.sandbox.backend import BACKENDS, NONE, choose_backend
from mlsys_grader.sandbox.contents import refuse_readable


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
        """How many submissions to judge at a time: `workers`, or one per core."""
        return self.workers or os.cpu_count() or 1

    @property
    def sandbox_name(self) -> str:
        """What records and audit log say that submissions ran in."""
        return NONE if self.unsafe else self.sandbox or BACKENDS[0]

    def settled(self, course: Path) -> Options:
        """Copy the options, with the sandbox that will be used.

        Raises `MissingToolError` where there is none, `InputError` where submissions could read the folder `course`.
        """
        if self.unsafe:
            return self
        backend = choose_backend(self.sandbox)
        if backend == BACKENDS[0]:  # the others have a system of their own
            refuse_readable([course])
        return replace(self, sandbox=backend)
