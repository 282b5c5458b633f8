"""Options of a grading run."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from mlsys_grader.sandbox.backend import BACKENDS, NONE, choose_backend
from mlsys_grader.sandbox.contents import refuse_readable


@dataclass(frozen=True)
class Options:
    """How to grade: worker threads, time factor, sandbox, engine and cluster address; `again` judges everything again.

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
        """Submissions judged concurrently: `workers`, or one per core."""
        return self.workers or os.cpu_count() or 1

    @property
    def sandbox_name(self) -> str:
        """Name of the sandbox in records and audit log."""
        return NONE if self.unsafe else self.sandbox or BACKENDS[0]

    def settled(self, course: Path) -> Options:
        """Resolve the sandbox to use.

        Raises `MissingToolError` if there is none, `InputError` if submissions could read the folder `course`.
        """
        if self.unsafe:
            return self
        backend = choose_backend(self.sandbox)
        if backend == BACKENDS[0]:  # containers bring their own file system
            refuse_readable([course])
        return replace(self, sandbox=backend)
