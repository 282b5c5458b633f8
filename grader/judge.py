"""Form the verdict on a submission, in a process that never runs a line of it.

For each case the judge draws the inputs from a secret seed, sends those without an underscore into the sandbox,
waits by its own clock for arrays, and compares them with an oracle that the sandbox never sees.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from grader import wire
from grader.sandbox import Job, Sandbox
from mlsys_lab.checks.artifact import Artifact
from mlsys_lab.checks.spec import Arrays, Case, Check, Mismatch
from mlsys_lab.checks.verdict import draw_inputs, public_inputs

T = TypeVar("T")

MEMORY_BYTES = 3 << 30
"""What the process of a check may map when the check sets no budget."""
MEMORY_SLACK_BYTES = 192 << 20
"""Beyond a check's own budget, which counts tensors only: room for the interpreter, inputs and library workspaces."""
GRACE_S = 2.0
"""Beyond a time limit, before the judge kills: the sandbox's own alarm tells more, so it may come first."""
TEXT = 400
"""Longest text that is taken over from a sandbox, in characters."""


@dataclass(frozen=True)
class Verdict:
    """Outcome of one check: all of its points or none, and for none the reason.

    Of a hidden case `case` names the kind only, and `got` and `expected` are empty. `fault` tells that the course's
    own code failed: then nothing is decided, and the instructor has to look.
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


class Fault(Exception):
    """A check's own code raised while it drew inputs, computed what is expected, or compared."""


@dataclass(frozen=True)
class Problem:
    """A mismatch, and in which case; `fatal` when the code cannot even be loaded, so that no check can pass."""

    mismatch: Mismatch
    case: Case | None = None
    fatal: bool = False


def secret_seed(check: Check, public_seed: int) -> int:
    """A seed that nobody can foresee: 128 bits from the operating system, hashed with the public seed."""
    drawn = secrets.token_bytes(16)
    return int.from_bytes(hashlib.sha256(f"{check.name}/{public_seed}/".encode() + drawn).digest()[:8], "little")


def judge(
    artifact: Artifact,
    sandbox: Sandbox,
    *,
    public_seed: int = 0,
    time_factor: float = 1.0,
    seeds: Mapping[str, int] | None = None,
) -> list[Verdict]:
    """One verdict per check of the sandbox's lab.

    `time_factor` stretches every time limit, for a slow machine. An artifact that cannot be loaded is tried once only.
    `seeds` replays: the secret seed to use for a check, by its name.
    """
    verdicts: list[Verdict] = []
    fatal: Problem | None = None
    for check in sandbox.lab.checks.checks:
        if fatal is not None:
            verdicts.append(_lost(check, fatal, seed=0, time_s=0.0))
            continue
        seed = (seeds or {}).get(check.name) or secret_seed(check, public_seed)
        start = time.monotonic()
        try:
            problem = _try(check, artifact, sandbox, seed, time_factor)
        except Fault as fault:
            verdicts.append(Verdict(check.name, check.title, check.points, 0.0, fault=str(fault), seed=seed))
            continue
        time_s = time.monotonic() - start
        if problem is None:
            verdicts.append(Verdict(check.name, check.title, check.points, check.points, seed=seed, time_s=time_s))
        else:
            verdicts.append(_lost(check, problem, seed=seed, time_s=time_s))
            fatal = problem if problem.fatal else None
    return verdicts


def refused(checks: tuple[Check, ...], why: Mismatch) -> list[Verdict]:
    """The verdicts on a submission that has no artifact to judge: no points, one reason."""
    return [_lost(check, Problem(why, fatal=True), seed=0, time_s=0.0) for check in checks]


def _lost(check: Check, problem: Problem, *, seed: int, time_s: float) -> Verdict:
    mismatch, case = problem.mismatch, problem.case
    hidden = case is not None and case.hidden
    what, got, expected = (_line(text) for text in (mismatch.what, mismatch.got, mismatch.expected))
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
        "" if problem.fatal else _line(check.hint),
        case.name if case else "",
        hidden,
        seed=seed,
        time_s=time_s,
    )


def _try(check: Check, artifact: Artifact, sandbox: Sandbox, seed: int, time_factor: float) -> Problem | None:
    """The first thing that is wrong, or None."""
    limit_s = check.time_limit_s * time_factor
    budget = MEMORY_BYTES if check.memory_bytes is None else check.memory_bytes + MEMORY_SLACK_BYTES
    order = {
        "check": check.name,
        "name": artifact.name,
        "source": artifact.source,
        "time_factor": time_factor,
        "memory_bytes": budget,
    }
    with sandbox.job() as job:
        try:
            reply = _ask(job, wire.Frame("job", order), limit_s)
        except wire.WireError as error:
            return Problem(_silence(job, error, limit_s, "the exported cells"), fatal=True)
        if reply.kind != "loaded":
            return Problem(_told(reply), fatal=True)
        for case in check.cases:
            inputs = _guarded(check, draw_inputs, check, case, seed)
            try:
                reply = _ask(job, wire.Frame("case", arrays=public_inputs(inputs)), limit_s)
            except wire.WireError as error:
                return Problem(_silence(job, error, limit_s, "it"), case)
            if reply.kind != "answer":
                return Problem(_told(reply), case)
            expected = _guarded(check, check.expect, inputs)
            if (mismatch := _compare(check, reply.arrays, expected)) is not None:
                return Problem(mismatch, case)
    return None


def _compare(check: Check, got: Arrays, expected: Arrays) -> Mismatch | None:
    """A comparison may stumble over arrays that no honest `run` returns: then they are not accepted."""
    try:
        return check.compare(got, expected)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return Mismatch("the answer cannot be compared", said, "the arrays that the check asks for")


def _ask(job: Job, question: wire.Frame, limit_s: float) -> wire.Frame:
    deadline = time.monotonic() + limit_s + GRACE_S
    wire.send(job.channel, question, deadline=deadline)
    return wire.receive(job.channel, limits=wire.Limits(header_bytes=64 << 10), deadline=deadline)


def _silence(job: Job, error: wire.WireError, limit_s: float, who: str) -> Mismatch:
    """Why no answer came."""
    if isinstance(error, wire.DeadlineError):
        limit = f"{limit_s:g} s"
        return Mismatch(f"{who} did not come to an end", f"no answer after {limit}", f"an answer within {limit}")
    if isinstance(error, wire.ClosedError):
        return Mismatch(f"{who} ended the process instead of giving an answer", job.ending(), "an answer")
    return Mismatch(f"{who} wrote to the grader's own channel", str(error), "an answer returned by a function")


def _told(reply: wire.Frame) -> Mismatch:
    """What the sandbox says went wrong: text from a hostile place, used as text only."""
    what, got, expected = (str(reply.meta.get(key, "")) for key in ("what", "got", "expected"))
    return Mismatch(what or "the submission gave no answer", got, expected)


def _line(text: str) -> str:
    """One printable line of bounded length."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= TEXT else flat[: TEXT - 1] + "…"


def _guarded(check: Check, call: Callable[..., T], *arguments: object) -> T:
    try:
        return call(*arguments)
    except Exception as error:
        raise Fault(f"check {check.name!r} itself failed: {type(error).__name__}: {error}") from error
