"""The judge's verdict on one check: points, and the reason for lost points as the student may see it."""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_checks.sandboxed.spec import Check, Mismatch
from mlsys_grader.judging.performance import PerformanceVerdict, await_measurement
from mlsys_grader.judging.problem import Ending, Problem

MAX_CHARACTERS = 400
"""Longest text taken over from a sandbox."""


@dataclass(frozen=True)
class Verdict:
    """Outcome of one check: all of its points, or none and the reason.

    For a hidden case `case` names its kind only, and `got` and `expected` are empty. `fault`: the course's own code
    failed, so nothing is decided and the instructor has to look.

    `time_s` is the judge's time for the check, `call_s` the part of it in which the sandbox worked on it (loading
    included). Both are by the judge's clock: a submission's own timing is worth nothing.

    `unfinished`: the task has not been written (always False for a hidden case, about which nothing is said).
    `refused`: nothing of the submission could be judged, for a reason that all checks share. `performance`: extra
    points for speed (`judging.performance`).
    """

    check: str
    title: str
    points: float
    earned: float
    what: str = ""
    got: str = ""
    expected: str = ""
    hint: str = ""
    case: str = ""
    hidden: bool = False
    fault: str = ""
    seed: int = 0
    time_s: float = 0.0
    call_s: float = 0.0
    unfinished: bool = False
    refused: bool = False
    performance: PerformanceVerdict | None = None

    @property
    def passed(self) -> bool:
        return self.earned == self.points

    @property
    def reason(self) -> str:
        """Why points were lost, in one line; "" for a check that passed."""
        found = f": got {self.got}" if self.got else ""
        wanted = f", expected {self.expected}" if self.expected else ""
        return f"{self.what}{found}{wanted}"


def fail_all(checks: tuple[Check, ...], why: Mismatch) -> list[Verdict]:
    """Fail every check for one reason: there is nothing to judge."""
    return [fail_check(check, Problem(why, Ending.LOAD_FAILED)) for check in checks]


def pass_check(check: Check) -> Verdict:
    """Award all points of a check."""
    speed = await_measurement(check.performance, passed=True)
    return Verdict(check.name, check.title, check.points, check.points, performance=speed)


def fail_check(check: Check, problem: Problem) -> Verdict:
    """Award no points, with the reason as far as the student may see it."""
    mismatch, case = problem.mismatch, problem.case
    hidden = case is not None and case.hidden
    what, got, expected = (to_line(text) for text in (mismatch.what, mismatch.got, mismatch.expected))
    helps = problem.ending is not Ending.LOAD_FAILED and (hidden or not mismatch.is_form)
    if hidden:
        what, got, expected = "a case that is not shown fails", "", ""
    return Verdict(
        check.name,
        check.title,
        check.points,
        0.0,
        what,
        got,
        expected,
        to_line(check.hints[0]) if helps else "",
        case.name if case else "",
        hidden,
        unfinished=problem.ending is Ending.NOT_IMPLEMENTED and not hidden,
        refused=problem.ending is Ending.LOAD_FAILED,
        performance=await_measurement(check.performance, passed=False),
    )


def to_line(text: str) -> str:
    """Reduce a text to one printable line of bounded length."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= MAX_CHARACTERS else flat[: MAX_CHARACTERS - 1] + "…"
