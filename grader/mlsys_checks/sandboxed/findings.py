"""What a traced launch did, as arrays for the trusted side."""

from __future__ import annotations

from typing import Any

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.trees import flatten
from mlsys_lab.kernels.trace.events import Trace
from mlsys_lab.kernels.trace.findings import findings

LAUNCHES = "launches"
"""Branch of the findings, by kernel name."""


def collect_findings(trace: Trace, artifact: Any = None, *, actor: str = "program") -> Arrays:
    """Counts and faults of one launch as arrays."""
    return flatten({LAUNCHES: {trace.kernel: findings(trace, artifact, actor=actor)}})
