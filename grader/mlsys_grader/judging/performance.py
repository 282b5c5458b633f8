"""What the judge says of a check's points for speed, before and after they are measured."""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_checks.sandboxed.performance import Performance
from mlsys_grader.sandbox.gpu import Gpu

NO_CUDA = "no CUDA device here"
NOT_YET = "not measured yet"
REASON = 400
"""Longest reason that is kept, in characters."""


@dataclass(frozen=True)
class PerformanceVerdict:
    """Extra points of one check. `earned` is None unless `measured`: what was not measured is not lost.

    `low`, `median` and `high` are the ratio to the baseline: points go by `low`, the end that holds whatever the
    submission did. `suspect` tells the instructor of a result that no honest submission gives. `time_s` are the seconds
    for which the device was held to find this out.
    """

    points: float
    measured: bool
    earned: float | None = None
    why: str = ""
    low: float | None = None
    median: float | None = None
    high: float | None = None
    device: str = ""
    baseline: str = ""
    suspect: str = ""
    time_s: float = 0.0

    @property
    def line(self) -> str:
        """What became of the points for speed, in one line."""
        if not self.measured:
            return self.why if self.why == NOT_YET else f"not measured here: {self.why}"
        marks = f"{self.earned:g} of {self.points:g}"
        if self.low is None:
            return f"{marks}: {self.why}"
        ratio = f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f}) of {self.baseline} on {self.device}"
        return f"{marks}: {ratio}{f'; {self.why}' if self.why else ''}"


def leave_unmeasured(performance: Performance, why: str, device: str = "") -> PerformanceVerdict:
    """Leave a check's points for speed open, with the reason why nothing could be measured."""
    return PerformanceVerdict(performance.points, measured=False, why=why[:REASON], device=device)


def await_measurement(performance: Performance | None, *, passed: bool) -> PerformanceVerdict | None:
    """Say that a check's points for speed await measurement, or are lost with it; None where it has none."""
    if performance is None:
        return None
    if not passed:
        return PerformanceVerdict(performance.points, True, 0.0, "the check itself was not passed")
    return leave_unmeasured(performance, NOT_YET if has_device(performance.device) else NO_CUDA)


def has_device(kind: str) -> bool:
    """Whether a device of this kind may be here: always for "cpu"; for "cuda" a driver's device file."""
    return kind == "cpu" or bool(Gpu().nodes())
