"""Form the verdict on a submission, in a process that never runs a line of it.

For each case the judge draws the inputs from a secret seed, sends those without an underscore into the sandbox,
waits by its own clock for arrays, and compares them with an oracle that the sandbox never sees.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mlsys_grader.judging.oracle import Fault, HeavyAnswerError, Oracle, Oracles, draw_seed
from mlsys_grader.judging.problem import Ending, Problem
from mlsys_grader.judging.process import Process, read_trouble
from mlsys_grader.judging.talk import talk
from mlsys_grader.judging.verdict import Verdict, award, deny, deny_all
from mlsys_grader.judging.world import World
from mlsys_grader.sandbox.inside import wire
from mlsys_grader.sandbox.launcher import SandboxDied
from mlsys_grader.sandbox.sandbox import Sandbox
from mlsys_lab.checks.deciding.artifact import Artifact
from mlsys_lab.checks.learner.ranks import split_ranks
from mlsys_lab.checks.learner.spec import Arrays, Case, Check, Mismatch
from mlsys_lab.checks.learner.texts import read_texts
from mlsys_lab.errors import InputError

DEATHS = 2
"""How often the sandbox may die, while a submission is alone in it, before that is taken for the submission's doing."""
BUDGET_S = 120.0
"""How long a submission may be at work in all, unless its checks' time limits add up to more."""


class _CrowdedError(Exception):
    """What was asked last is to be asked again with no other submission beside it."""


def judge(
    artifact: Artifact,
    sandbox: Sandbox,
    oracles: Oracles,
    *,
    public_seed: int = 0,
    time_factor: float = 1.0,
    seeds: Mapping[str, int] | None = None,
) -> list[Verdict]:
    """One verdict per check of the lab that sandbox and oracles are of.

    `time_factor` stretches every time limit, for a slow machine. An artifact that cannot be loaded is tried once only,
    unless it ran out of time.
    `seeds` replays: the secret seed to use for a check, by its name. Raises `CourseError` when the sandbox cannot be
    kept alive, whoever is judged; when it dies of this submission alone, that is a verdict.
    """
    given = seeds or {}
    drawn = {check.name: given.get(check.name) or draw_seed(check, public_seed) for check in sandbox.lab.checks.checks}
    with Oracle(oracles, drawn, time_factor) as oracle:
        return _Examination(artifact, sandbox, oracle, time_factor).form_verdicts()


class _Examination:
    """One submission on its way through all checks of a lab, in as few processes as its behaviour allows.

    A process that answered well is asked on. Whatever follows a wrong answer or an exception gets a fresh one, since
    what a failure left behind must cost no other check; a check with a memory budget has one of its own. What follows
    which ending stands in `judging.problem.CONSEQUENCES`.
    """

    def __init__(self, artifact: Artifact, sandbox: Sandbox, oracle: Oracle, time_factor: float) -> None:
        self._artifact, self._sandbox, self._oracle, self._time_factor = artifact, sandbox, oracle, time_factor
        self._checks = sandbox.lab.checks.checks
        self._processes: list[Process] = []  # to be asked on; rank 0 is the first, which answers other checks too
        self._ended: list[Process] = []
        self._has_loaded = False

    def form_verdicts(self) -> list[Verdict]:
        """A verdict on each check. Where the sandbox died it is tried again alone; `DEATHS` times is its own doing."""
        verdicts: list[Verdict] = []
        deaths: Counter[int] = Counter()
        alone = False
        try:
            while len(verdicts) < len(self._checks):
                try:
                    with self._sandbox.turns.turn(alone=alone):
                        self._go_on(verdicts, alone=alone)
                    alone = False
                except _CrowdedError:
                    alone = True
                except SandboxDied:
                    deaths[len(verdicts)] += alone
                    alone = True
                    if deaths[len(verdicts)] == DEATHS:
                        why = Mismatch("it ended the whole sandbox", f"{DEATHS} times", "an answer")
                        verdicts += deny_all(self._checks[len(verdicts) :], why)
        finally:
            for process in self._ended:
                process.job.close()
        return verdicts

    def _go_on(self, verdicts: list[Verdict], *, alone: bool) -> None:
        """Add verdicts until there is one on every check, or, alone, one verdict: others wait."""
        try:
            while len(verdicts) < len(self._checks):
                check = self._checks[len(verdicts)]
                start, busy_s = time.monotonic(), self._busy_s
                verdict, problem = self._try(check, alone=alone)
                seed, time_s = self._oracle.seeds[check.name], time.monotonic() - start
                verdicts.append(replace(verdict, seed=seed, time_s=time_s, call_s=self._busy_s - busy_s))
                if problem is not None and problem.consequence.ends_judging:
                    verdicts += [deny(rest, problem) for rest in self._checks[len(verdicts) :]]
                if alone:
                    return
        finally:
            self._end(*self._processes)

    @property
    def _busy_s(self) -> float:
        """Seconds that the judge has waited for processes of this submission."""
        return sum(process.busy_s for process in [*self._ended, *self._processes])

    def _end(self, *processes: Process) -> None:
        """Have processes killed, and go on while they die; all are dead before the verdicts are given."""
        for process in processes:
            process.settle()
            process.job.let_go()
            self._ended.append(process)
            if process in self._processes:
                self._processes.remove(process)  # in place: who adds to the list may be waiting for this

    def _try(self, check: Check, *, alone: bool) -> tuple[Verdict, Problem | None]:
        """The verdict on a check, after as many attempts as their endings allow, and the problem of the last.

        Raises `_CrowdedError` where the next attempt has to be made alone.
        """
        ask = self._ask_alone if check.memory_bytes is not None else self._ask_on
        try:
            problem, tries = ask(check), 1
            while problem is not None and tries <= problem.consequence.retries:
                problem, tries = ask(check), tries + 1
        except Fault as fault:
            return Verdict(check.name, check.title, check.points, 0.0, fault=str(fault)), None
        if problem is None:
            return award(check), None
        if problem.consequence.retries_alone and not alone:
            raise _CrowdedError
        if problem.ending in (Ending.KILLED, Ending.SILENT) and not self._has_loaded:
            problem = replace(problem, ending=Ending.HOPELESS)
        return deny(check, problem), problem

    def _find_overspent(self) -> Problem | None:
        """The problem of a submission that has taken more time than all its checks may take, or None."""
        limits_s = sum(check.time_limit_s for check in self._checks)
        budget_s = max(BUDGET_S, limits_s) * self._time_factor
        for process in self._processes:
            process.settle()
        spent_s = sum(process.worked_s for process in [*self._ended, *self._processes]) + self._oracle.busy_s
        if spent_s <= budget_s:
            return None
        late = f"{spent_s:.0f} s for the checks until here"
        return Problem(Mismatch("the submission takes too long", late, f"{budget_s:g} s for all"), Ending.SPENT)

    def _ask_on(self, check: Check) -> Problem | None:
        """Ask the processes that answered the checks before, and new ones where there are too few."""
        if any((one.traced, one.texts) != (check.traced, _lent(check)) for one in self._processes):
            self._end(*self._processes)
        problem = self._ask_cases(self._processes, check, self._checks)
        asked = list(self._processes)
        if problem is not None and problem.is_told and any(process.has_seen_hidden for process in asked):
            # What a process says of a case that is shown could tell a hidden one that it has seen. A fresh one says it.
            self._end(*asked)
            return self._ask_on(check)
        if problem is not None and not problem.consequence.keeps_process:
            self._end(*asked)
        return problem

    def _ask_alone(self, check: Check) -> Problem | None:
        """Ask processes that serve this check only, so that their memory is this check's."""
        processes: list[Process] = []
        try:
            return self._ask_cases(processes, check, (check,))
        finally:
            self._end(*processes)

    def _open(self, check: Check) -> Process:
        job = self._sandbox.open_job(traced=check.traced)
        return Process(job, traced=check.traced, time_factor=self._time_factor, texts=_lent(check))

    def _read_texts(self, check: Check) -> dict[str, str] | Problem:
        """The texts that a traced check needs, by name, from a process that is asked for nothing else."""
        case = check.cases[0]
        process = Process(self._sandbox.open_job(), traced=False, time_factor=self._time_factor)
        try:
            if problem := self._load([process], check, (check,), {}):
                return problem
            seed = self._oracle.random_seed(check, case)
            got = self._receive(process, check, case, lambda: process.send_texts(check, seed))
        finally:
            self._end(process)
        try:
            return got if isinstance(got, Problem) else read_texts(check.texts, got)
        except InputError as error:
            return Problem(Mismatch(error.what, str(error.got or ""), str(error.expected or "")), Ending.WRONG, case)

    def _load(
        self, processes: Sequence[Process], check: Check, checks: Sequence[Check], texts: Mapping[str, str]
    ) -> Problem | None:
        """Have the artifact loaded. One that never was is hopeless; without its kernels alone it may still load."""
        try:
            for process in processes:
                process.send_artifact(self._artifact, check, checks, texts)
            for process in processes:
                reply = process.receive()
                if reply.kind != "loaded":
                    may_load = self._has_loaded or check.traced
                    return Problem(read_trouble(reply), Ending.WRONG if may_load else Ending.HOPELESS)
        except wire.WireError as error:
            mismatch, ending = process.explain(error, "the exported cells")
            if ending not in (Ending.KILLED, Ending.SILENT):
                ending = Ending.WRONG if self._has_loaded else Ending.HOPELESS
            return Problem(mismatch, ending)
        self._has_loaded = True
        return None

    def _ask_cases(self, processes: list[Process], check: Check, checks: Sequence[Check]) -> Problem | None:
        """Ask case after case; the first that goes wrong, or None. Adds to `processes` what there are too few of."""
        for case in check.cases:
            if problem := self._find_overspent():
                return problem
            self._oracle.draw_ahead(check, case)
            if not check.ranks and (problem := self._add(processes, 1, check, checks)):
                return problem
            inputs = self._oracle.inputs(check, case)
            size = len(split_ranks(inputs)) if check.ranks else 1
            if problem := self._add(processes, size, check, checks):
                return problem
            asked = processes[:size]
            for process in asked:
                process.has_seen_hidden |= case.hidden
            seed = self._oracle.random_seed(check, case)
            ask = self._ask_ranks if check.ranks else self._ask_case
            if (problem := ask(asked, check, case, inputs, seed)) is not None:
                return problem
        return None

    def _add(self, processes: list[Process], size: int, check: Check, checks: Sequence[Check]) -> Problem | None:
        """Add processes that have loaded the artifact until there are `size`."""
        if len(processes) >= size:
            return None
        texts = self._read_texts(check) if _lent(check) else {}
        if isinstance(texts, Problem):
            return texts
        new = [self._open(check) for _ in range(size - len(processes))]
        processes += new
        return self._load(new, check, checks, texts)

    def _ask_ranks(
        self, processes: Sequence[Process], check: Check, case: Case, inputs: Arrays, seed: int
    ) -> Problem | None:
        got = World(processes).ask(check, case, inputs, seed, lambda: self._go_ahead(check, case))
        return got if isinstance(got, Problem) else self._compare(check, case, got)

    def _ask_case(
        self, processes: Sequence[Process], check: Check, case: Case, inputs: Arrays, seed: int
    ) -> Problem | None:
        (process,) = processes

        def ask() -> None:
            process.send_case(check, inputs, seed)
            self._go_ahead(check, case)

        got = self._receive(process, check, case, ask)
        return got if isinstance(got, Problem) else self._compare(check, case, got)

    def _receive(self, process: Process, check: Check, case: Case, ask: Callable[[], None]) -> Arrays | Problem:
        """Have a question put to a process; the arrays of its answer, or why there are none."""
        try:
            ask()
            reply = process.receive()
            if reply.kind == "question":
                reply = talk(process, self._oracle, check, case, reply)
        except wire.WireError as error:
            return Problem(*process.explain(error, "it"), case)
        if reply.kind == "answer":
            return reply.arrays
        unwritten = reply.meta.get("unfinished") is True
        return Problem(read_trouble(reply), Ending.UNWRITTEN if unwritten else Ending.WRONG, case)

    def _compare(self, check: Check, case: Case, got: Arrays) -> Problem | None:
        try:
            mismatch = self._oracle.compare(check, case, got)
        except HeavyAnswerError as heavy:
            return Problem(heavy.mismatch, Ending.HEAVY, case)
        return None if mismatch is None else Problem(mismatch, Ending.WRONG, case)

    def _go_ahead(self, check: Check, case: Case) -> None:
        """Begin to compute what is expected, and to draw what comes next, while the submission is at work."""
        self._oracle.expect_ahead(check, case)
        if case is not check.cases[-1]:
            self._oracle.draw_ahead(check, check.cases[check.cases.index(case) + 1])
        elif check is not self._checks[-1]:
            after = self._checks[self._checks.index(check) + 1]
            self._oracle.draw_ahead(after, after.cases[0])


def _lent(check: Check) -> tuple[str, ...]:
    """Names of the texts that a process of a check is lent: it may not ask the submission's own functions."""
    return check.texts if check.traced else ()
