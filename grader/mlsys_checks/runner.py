"""Run a check in this process: in a notebook, and for `mlsys-lab check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlsys_checks.sandboxed.attempt import attempt
from mlsys_checks.sandboxed.spec import Case, Check, Mismatch
from mlsys_checks.trusted.snippet import write_snippet
from mlsys_checks.trusted.verdict import bind_call, draw_inputs, judge_case, public_inputs, shown_inputs
from mlsys_lab.errors import CourseError

PUBLIC_SEED = 0
"""Public cases use a fixed seed, so that a learner who changes one line sees what that line changed."""

WALL_CLOCK_FACTOR = 5.0
"""Wall-clock limit as a multiple of a time limit: the machine may be busy."""


class CheckFailed(CourseError):
    """A check in a notebook failed. Notebooks show one line and no traceback."""


@dataclass(frozen=True)
class Report:
    """Outcome of one check. `case` and `mismatch` describe the first failed case; both are None if it passed.

    `given` is that case as runnable code. `time_s` is the time in the learner's code over all cases tried. `failures`
    counts earlier failed attempts of the session for which a hint helps.
    """

    check: Check
    passed: bool
    case: Case | None
    mismatch: Mismatch | None
    time_s: float
    unfinished: bool = False
    cases: int = 0
    given: str = ""
    failures: int = 0

    @property
    def points(self) -> float:
        """Points earned."""
        return self.check.points if self.passed else 0.0

    @property
    def hint(self) -> str:
        """The next hint, if the answer has the right form but is wrong; else ""."""
        helps = self.mismatch is not None and not self.unfinished and not self.mismatch.is_form
        return self.check.hints[min(self.failures, len(self.check.hints) - 1)] if helps else ""

    @property
    def line(self) -> str:
        """The outcome in one line."""
        if self.mismatch is None:
            return f"passed: {self.check.title}"
        if self.unfinished:
            return f"still to do: {self.check.title} ({self.mismatch.what})"
        return f"not right yet: {self.check.title} ({self.mismatch.what})"


def run_check(
    check: Check, artifact: Any, *, seed: int = PUBLIC_SEED, hidden: bool = False, patience: float = WALL_CLOCK_FACTOR
) -> Report:
    """Run a check's public cases (and hidden ones if requested) until one fails; `patience` as in `time_limit`.

    `artifact` is the module of exported cells, or any object with the learner's definitions as attributes.
    """
    time_s, tried = 0.0, 0
    for case in check.cases:
        if case.hidden and not hidden:
            continue
        inputs = draw_inputs(check, case, seed)
        outcome = attempt(bind_call(check, inputs), artifact, public_inputs(inputs), patience)
        time_s, tried = time_s + outcome.time_s, tried + 1
        mismatch = outcome.problem
        if outcome.arrays is not None:
            mismatch = judge_case(check, case, inputs, outcome.arrays)
        if mismatch is not None:
            given = "" if case.hidden else write_snippet(check, case, shown_inputs(check, inputs))
            return Report(check, False, case, mismatch, time_s, outcome.unfinished, tried, given)
    return Report(check, True, None, None, time_s, cases=tried)
