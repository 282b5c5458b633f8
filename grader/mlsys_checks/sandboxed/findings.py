"""What was found of launches, on its way to the trusted side: one branch among a check's arrays."""

from __future__ import annotations

from typing import Any

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.trees import flatten
from mlsys_lab.kernels.trace.events import Trace
from mlsys_lab.kernels.trace.findings import findings

LAUNCHES = "launches"
"""The branch that holds, by the kernel's name, the findings of its launch."""


def collect_findings(trace: Trace, artifact: Any = None, *, actor: str = "program") -> Arrays:
    """Counts and faults of one launch (`findings`), as arrays."""
    return flatten({LAUNCHES: {trace.kernel: findings(trace, artifact, actor=actor)}})
