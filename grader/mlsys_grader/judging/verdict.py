"""What the judge says of one check: points, and the reason why they were lost, fit for the student's eyes."""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_grader.judging.performance import PerformanceVerdict, before_measuring
from mlsys_lab.checks.spec import Case, Check, Mismatch

KILLED = "the process was killed by signal 9"
"""What a sandbox says of a child that ended so (`sandbox.launcher.Job.ending`)."""
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
    of which nothing is said. `performance` are extra points beside these, of a check that has them
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
    performance: PerformanceVerdict | None = None

    @property
    def passed(self) -> bool:
        """Whether the check was met."""
        return self.earned == self.points

    @property
    def reason(self) -> str:
        """Why points were lost, in one line; empty for a check that was met."""
        found = f": got {self.got}" if self.got else ""
        wanted = f", expected {self.expected}" if self.expected else ""
        return f"{self.what}{found}{wanted}"


@dataclass(frozen=True)
class Problem:
    """A mismatch, and in which case.

    `fatal` when the code cannot even be loaded, so that no check can pass; `harmless` when the task has not been
    written, so that the process may be asked on; `timed_out` when the process said nothing, so that it told nothing.
    """

    mismatch: Mismatch
    case: Case | None = None
    fatal: bool = False
    harmless: bool = False
    timed_out: bool = False

    @property
    def tells(self) -> bool:
        """Whether its reason is shown, and may hold what the process chose to say in it."""
        return not self.timed_out and not (self.case and self.case.hidden)

    @property
    def killed(self) -> bool:
        """Whether the process was killed outright, which somebody outside the sandbox may have done as well."""
        return self.mismatch.got == KILLED


def refused(checks: tuple[Check, ...], why: Mismatch) -> list[Verdict]:
    """The verdicts on a submission that has no artifact to judge: no points, one reason."""
    return [lost(check, Problem(why, fatal=True)) for check in checks]


def met(check: Check) -> Verdict:
    """All points."""
    speed = before_measuring(check.performance, passed=True)
    return Verdict(check.name, check.title, check.points, check.points, performance=speed)


def lost(check: Check, problem: Problem) -> Verdict:
    """No points, and the reason as far as the student may be told it."""
    mismatch, case = problem.mismatch, problem.case
    hidden = case is not None and case.hidden
    what, got, expected = (line(text) for text in (mismatch.what, mismatch.got, mismatch.expected))
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
        "" if problem.fatal else line(check.hint),
        case.name if case else "",
        hidden,
        unfinished=problem.harmless and not hidden,
        performance=before_measuring(check.performance, passed=False),
    )


def line(text: str) -> str:
    """One printable line of bounded length."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= TEXT else flat[: TEXT - 1] + "…"
