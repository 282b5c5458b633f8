"""What the judge says of one check: points, and the reason why they were lost, fit for the student's eyes."""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_checks.sandboxed.spec import Check, Mismatch
from mlsys_grader.judging.performance import PerformanceVerdict, await_measurement
from mlsys_grader.judging.problem import Ending, Problem

TEXT = 400
"""Longest text that is taken over from a sandbox, in characters."""


@dataclass(frozen=True)
class Verdict:
    """Outcome of one check: all of its points or none, and for none the reason.

    Of a hidden case `case` names the kind only, and `got` and `expected` are empty. `fault` tells that the course's
    own code failed: then nothing is decided, and the instructor has to look.

    `time_s` are the seconds that the check took the judge; during `call_s` of them the judge saw the sandbox at work
    on it (loading included), so that the rest is the judge's own. Both are by the judge's clock: what a submission
    says of its own time is worth nothing.

    `unfinished` tells a task that has not been written from one that is wrong; it is False where a hidden case failed,
    of which nothing is said. `refused` tells that nothing of the submission could be judged: the reason is that of all
    checks, not of this one. `performance` are extra points beside these, of a check that has them
    (`judging.performance`).
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
        """Whether all points were earned."""
        return self.earned == self.points

    @property
    def reason(self) -> str:
        """Why points were lost, in one line; empty for a check that was met."""
        found = f": got {self.got}" if self.got else ""
        wanted = f", expected {self.expected}" if self.expected else ""
        return f"{self.what}{found}{wanted}"


def fail_all(checks: tuple[Check, ...], why: Mismatch) -> list[Verdict]:
    """Give no points on any check, for one reason: there is nothing to judge."""
    return [fail_check(check, Problem(why, Ending.LOAD_FAILED)) for check in checks]


def pass_check(check: Check) -> Verdict:
    """Give a check all of its points."""
    speed = await_measurement(check.performance, passed=True)
    return Verdict(check.name, check.title, check.points, check.points, performance=speed)


def fail_check(check: Check, problem: Problem) -> Verdict:
    """Give a check no points, with the reason as far as the student may be told it."""
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
    """Make one printable line of a text, of bounded length."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= TEXT else flat[: TEXT - 1] + "…"
