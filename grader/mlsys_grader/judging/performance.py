"""The judge's verdict on a check's performance points, before and after they are measured."""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_checks.sandboxed.performance import Performance
from mlsys_grader.sandbox.gpu import Gpu

NO_CUDA = "no CUDA device here"
NOT_MEASURED = "not measured yet"
MAX_REASON = 400
"""Longest reason that is kept, in characters."""


@dataclass(frozen=True)
class PerformanceVerdict:
    """Extra points of one check. `earned` is None unless `measured`: what was not measured is not lost.

    `low`, `median` and `high` are the ratio to the baseline; points follow from `low`, the end that holds whatever the
    submission did. `suspect` tells the instructor about a result that no honest submission gives. `time_s` is how long
    the measurement held the device.
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
        """The outcome in one line."""
        if not self.measured:
            return self.why if self.why == NOT_MEASURED else f"not measured here: {self.why}"
        marks = f"{self.earned:g} of {self.points:g}"
        if self.low is None:
            return f"{marks}: {self.why}"
        ratio = f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f}) of {self.baseline} on {self.device}"
        return f"{marks}: {ratio}{f'; {self.why}' if self.why else ''}"


def leave_unmeasured(performance: Performance, why: str, device: str = "") -> PerformanceVerdict:
    """Leave performance points open, with the reason."""
    return PerformanceVerdict(performance.points, measured=False, why=why[:MAX_REASON], device=device)


def await_measurement(performance: Performance | None, *, passed: bool) -> PerformanceVerdict | None:
    """Verdict before a measurement: pending, lost with the check, or None for a check without performance points."""
    if performance is None:
        return None
    if not passed:
        return PerformanceVerdict(performance.points, True, 0.0, "the check itself was not passed")
    return leave_unmeasured(performance, NOT_MEASURED if has_device(performance.device) else NO_CUDA)


def has_device(kind: str) -> bool:
    """Whether a device of this kind may be present: always for "cpu"; for "cuda" if the driver's device file exists."""
    return kind == "cpu" or bool(Gpu().nodes())
