"""Run a check on a learner's code in this process: in a notebook, and behind `mlsys-lab check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlsys_checks.sandboxed.attempt import attempt
from mlsys_checks.sandboxed.spec import Case, Check, Mismatch
from mlsys_checks.trusted.snippet import write_snippet
from mlsys_checks.trusted.verdict import bind_call, draw_inputs, judge_case, public_inputs, shown_inputs
from mlsys_lab.errors import CourseError

PUBLIC_SEED = 0
"""Public cases draw the same numbers every time, so that a learner who changes one line sees what that line changed."""

WALL_CLOCK_FACTOR = 5.0
"""Times a time limit by the clock, after which a notebook waits no longer: other work may keep the machine from it."""


class CheckFailed(CourseError):
    """A check in a notebook was not passed. Notebooks show its one line and no traceback."""


@dataclass(frozen=True)
class Report:
    """Outcome of one check. `case` and `mismatch` tell the first case that failed; both are None when it passed.

    `given` is that case as code that can be run. `time_s` is the time spent in the learner's code over all cases
    tried. `failures` counts earlier attempts of the session that were helped by a hint.
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
        """The check's points if it passed, else 0."""
        return self.check.points if self.passed else 0.0

    @property
    def hint(self) -> str:
        """The next of the check's hints, where there is an answer of the right form to mend; else ""."""
        helps = self.mismatch is not None and not self.unfinished and not self.mismatch.is_form
        return self.check.hints[min(self.failures, len(self.check.hints) - 1)] if helps else ""

    @property
    def line(self) -> str:
        """The outcome in one line of plain text."""
        if self.mismatch is None:
            return f"passed: {self.check.title}"
        if self.unfinished:
            return f"still to do: {self.check.title} ({self.mismatch.what})"
        return f"not right yet: {self.check.title} ({self.mismatch.what})"


def run_check(
    check: Check, artifact: Any, *, seed: int = PUBLIC_SEED, hidden: bool = False, patience: float = WALL_CLOCK_FACTOR
) -> Report:
    """Try a check's public cases (and the hidden ones if asked) until one fails; `patience` as in `time_limit`.

    `artifact` is the module of exported cells, or anything that has the learner's definitions as attributes.
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
