"""Form the verdict on a submission, in a process that never runs a line of it.

For each case the judge draws the inputs from a secret seed, sends those without an underscore into the sandbox,
waits by its own clock for arrays, and compares them with an oracle that the sandbox never sees.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from grader import wire
from grader.launcher import Job, SandboxDied
from grader.oracle import Fault, Oracle, secret_seed
from grader.sandbox import Sandbox
from grader.verdict import Problem, Verdict, lost, met, refused
from mlsys_lab.checks.deciding.artifact import Artifact
from mlsys_lab.checks.deciding.verdict import public_inputs
from mlsys_lab.checks.learner.spec import Case, Check, Mismatch, call_name

__all__ = ["Verdict", "judge", "refused"]

MEMORY_BYTES = 3 << 30
"""What a submission's process may map unless a check sets a budget."""
MEMORY_SLACK_BYTES = 64 << 20
"""Beyond a check's own budget, which counts tensors only: room for the interpreter, inputs and library workspaces."""
DEATHS = 2
"""How often the sandbox may die, while a submission is alone in it, before that is taken for the submission's doing."""
KILLS = 3
"""How often a check is tried again because its process was killed outright: somebody outside may have done that."""
GRACE_S = 2.0
"""Beyond a time limit, before the judge kills: the sandbox's own alarm tells more, so it may come first."""


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
    `seeds` replays: the secret seed to use for a check, by its name. Raises `CourseError` when the sandbox cannot be
    kept alive, whoever is judged; when it dies of this submission alone, that is a verdict.
    """
    given = seeds or {}
    drawn = {
        check.name: given.get(check.name) or secret_seed(check, public_seed) for check in sandbox.lab.checks.checks
    }
    with Oracle(drawn) as oracle:
        return _Examination(artifact, sandbox, oracle, time_factor).verdicts()


class _Examination:
    """One submission on its way through all checks of a lab, in as few processes as its behaviour allows.

    A process that answered well is asked on. Whatever follows a wrong answer or an exception gets a fresh one, since
    what a failure left behind must cost no other check; a check with a memory budget has one of its own.
    """

    def __init__(self, artifact: Artifact, sandbox: Sandbox, oracle: Oracle, time_factor: float) -> None:
        self.artifact, self.sandbox, self.oracle, self.time_factor = artifact, sandbox, oracle, time_factor
        self.checks = sandbox.lab.checks.checks
        self.done: list[Verdict] = []
        self.fatal: Problem | None = None
        self.job: Job | None = None
        self.traced = False  # whether `job` was given the kernels only
        self.dying: list[Job] = []
        self.saw_hidden = False
        self.loaded_once = False
        self.call_s = 0.0

    def verdicts(self) -> list[Verdict]:
        """All verdicts. A check during which the sandbox died is tried again alone; `DEATHS` times is its own doing."""
        deaths: Counter[int] = Counter()
        alone = False
        try:
            while len(self.done) < len(self.checks):
                try:
                    with self.sandbox.turns.turn(alone=alone):
                        self._go_on()
                except SandboxDied:
                    deaths[len(self.done)] += alone
                    alone = True
                    if deaths[len(self.done)] == DEATHS:
                        self.fatal = Problem(Mismatch("it ended the whole sandbox", f"{DEATHS} times", "an answer"))
        finally:
            for job in self.dying:
                job.close()
        return self.done

    def _go_on(self) -> None:
        try:
            for check in self.checks[len(self.done) :]:
                self.done.append(self._verdict(check))
        finally:
            self._drop()

    def _let_go(self, job: Job) -> None:
        """Have a process killed, and go on while it dies; all are dead before the verdicts are given."""
        job.let_go()
        self.dying.append(job)

    def _drop(self) -> None:
        if self.job is not None:
            self._let_go(self.job)
        self.job = None
        self.saw_hidden = False

    def _verdict(self, check: Check) -> Verdict:
        if self.fatal is not None:
            return lost(check, self.fatal)
        start, self.call_s = time.monotonic(), 0.0
        try:
            problem = self._try(check)
            for _ in range(KILLS):
                if problem is not None and problem.killed:
                    problem = self._try(check)  # what a submission did itself, it does again
        except Fault as fault:
            verdict = Verdict(check.name, check.title, check.points, 0.0, fault=str(fault))
        else:
            verdict = met(check) if problem is None else lost(check, problem)
            self.fatal = problem if problem is not None and problem.fatal else None
        time_s = time.monotonic() - start
        return replace(verdict, seed=self.oracle.seeds[check.name], time_s=time_s, call_s=self.call_s)

    def _try(self, check: Check) -> Problem | None:
        return self._alone(check) if check.memory_bytes is not None else self._together(check)

    def _together(self, check: Check) -> Problem | None:
        """Ask the process that answered the checks before, or a new one."""
        if self.traced != check.traced:
            self._drop()
        if self.job is None:
            self.job, self.traced = self.sandbox.open_job(), check.traced
            problem = self._load(self.job, check)
        else:
            problem = None
        problem = problem or self._ask_all(self.job, check)
        if problem is not None and self.saw_hidden and problem.tells:
            # What a process says of a case that is shown could tell a hidden one that it has seen. A fresh one says it.
            self._drop()
            return self._together(check)
        if problem is not None and not problem.harmless:
            self._drop()
        return problem

    def _alone(self, check: Check) -> Problem | None:
        """Ask a process that serves this check only, so that its memory is this check's."""
        job = self.sandbox.open_job()
        try:
            return self._load(job, check) or self._ask_all(job, check)
        finally:
            self._let_go(job)

    def _load(self, job: Job, check: Check) -> Problem | None:
        """Have the artifact loaded; nothing of it has run before the limits of its process are set."""
        limit_s = check.time_limit_s * self.time_factor
        budget, checks = MEMORY_BYTES, self.checks
        if check.memory_bytes is not None:
            budget, checks = check.memory_bytes + MEMORY_SLACK_BYTES, (check,)
        # CPU time is the kernel's own word on an endless loop, in case nobody is left to kill by the clock.
        cpu_s = sum(one.time_limit_s * (len(one.cases) + 1) for one in checks) * self.time_factor
        order = {
            "name": self.artifact.name,
            "source": self.artifact.source,
            "traced": check.traced,
            "time_limit_s": limit_s,
            "memory_bytes": budget,
            "cpu_s": int(cpu_s) + 5,
        }
        try:
            job_start = time.monotonic()
            job.send("job", order, deadline=job_start + limit_s + GRACE_S)
            self.oracle.draw_ahead(check, check.cases[0])
            reply = self._receive(job, job_start, limit_s)
        except wire.WireError as error:
            return Problem(_silence(job, error, limit_s, "the exported cells"), fatal=not self.loaded_once)
        if reply.kind != "loaded":
            return Problem(_told(reply), fatal=not self.loaded_once and not check.traced)
        self.loaded_once = True
        return None

    def _receive(self, job: Job, start: float, limit_s: float) -> wire.Frame:
        """Wait for the answer to a question that was put at `start`, by the judge's own clock."""
        try:
            return job.receive(deadline=start + limit_s + GRACE_S)
        finally:
            self.call_s += time.monotonic() - start

    def _ask_all(self, job: Job, check: Check) -> Problem | None:
        """The first case that goes wrong, or None."""
        limit_s = check.time_limit_s * self.time_factor
        for case in check.cases:
            inputs = self.oracle.inputs(check, case)
            question = {
                "call": call_name(check.run),
                "uses": check.uses,
                "time_limit_s": limit_s,
                "memory_bytes": check.memory_bytes,
                "random_seed": self.oracle.random_seed(check, case),
            }
            self.saw_hidden |= case.hidden
            start = time.monotonic()
            try:
                job.send("case", question, public_inputs(inputs), deadline=start + limit_s + GRACE_S)
                expected = self.oracle.expect_ahead(check, inputs)
                self._draw_next(check, case)
                reply = self._receive(job, start, limit_s)
            except wire.WireError as error:
                late = isinstance(error, wire.DeadlineError)
                return Problem(_silence(job, error, limit_s, "it"), case, timed_out=late)
            if reply.kind != "answer":
                return Problem(_told(reply), case, harmless=reply.meta.get("unfinished") is True)
            if (mismatch := self.oracle.compare(check, reply.arrays, expected)) is not None:
                return Problem(mismatch, case)
        return None

    def _draw_next(self, check: Check, case: Case) -> None:
        """Begin to draw what will be asked if this case goes well."""
        if case is not check.cases[-1]:
            self.oracle.draw_ahead(check, check.cases[check.cases.index(case) + 1])
        elif check is not self.checks[-1]:
            after = self.checks[self.checks.index(check) + 1]
            self.oracle.draw_ahead(after, after.cases[0])


def _silence(job: Job, error: wire.WireError, limit_s: float, who: str) -> Mismatch:
    """Why no answer came."""
    if isinstance(error, wire.DeadlineError):
        limit = f"{limit_s:g} s"
        return Mismatch(f"{who} did not come to an end", f"no answer after {limit}", f"an answer within {limit}")
    if isinstance(error, wire.ClosedError):
        ending = job.ending()
        if job.excess:
            return Mismatch(f"{who} needs {job.excess}", ending, "less")
        return Mismatch(f"{who} ended the process instead of giving an answer", ending, "an answer")
    return Mismatch(f"{who} wrote to the grader's own channel", str(error), "an answer returned by a function")


def _told(reply: wire.Frame) -> Mismatch:
    """What the sandbox says went wrong: text from a hostile place, used as text only."""
    what, got, expected = (str(reply.meta.get(key, "")) for key in ("what", "got", "expected"))
    return Mismatch(what or "the submission gave no answer", got, expected)
