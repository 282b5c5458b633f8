"""Form the verdict on a submission, in a process that never runs a line of it.

For each case the judge draws the inputs from a secret seed, sends those without an underscore into the sandbox,
waits by its own clock for arrays, and compares them with an oracle that the sandbox never sees.

The public cases of all checks come first, then the hidden cases of the checks that passed them. The feedback quotes
only what a submission says in a public case, that is, before it has seen any hidden input: no channel between its
processes can carry one into the feedback.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mlsys_checks.sandboxed.kernel_sources import read_sources
from mlsys_checks.sandboxed.ranks import split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.artifact import Artifact
from mlsys_grader.judging.oracle import AnswerTooLargeError, CheckError, Oracle, OracleServer, draw_seed
from mlsys_grader.judging.problem import Ending, Problem
from mlsys_grader.judging.process import Process, read_endless, read_problem
from mlsys_grader.judging.queries import answer_queries
from mlsys_grader.judging.verdict import Verdict, fail_check, pass_check
from mlsys_grader.judging.world import World
from mlsys_grader.sandbox.inside import wire
from mlsys_grader.sandbox.launcher import SandboxDiedError
from mlsys_grader.sandbox.sandbox import Sandbox
from mlsys_lab.errors import InputError

MAX_CRASHES = 2
"""How often the sandbox may die, while a submission is alone in it, before that is taken for the submission's doing."""
BUDGET_S = 120.0
"""How long a submission may be at work in all, unless its checks' time limits add up to more."""
WALL_CLOCK_FACTOR = 4.0
"""Times that budget by the clock, after which a submission is ended however busy the machine is."""
HIDDEN_FRACTION = 0.5
"""Fraction of budget and ceiling that is left for the hidden cases, whatever the public cases took."""


class _RetryAloneError(Exception):
    """What was asked last is to be asked again with no other submission beside it."""


def judge(
    artifact: Artifact,
    sandbox: Sandbox,
    oracles: OracleServer,
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
        return _SubmissionJudge(artifact, sandbox, oracle, time_factor).form_verdicts()


class _SubmissionJudge:
    """One submission on its way through all checks of a lab, in as few processes as its behaviour allows.

    A process that answered well is asked on. Whatever follows a wrong answer or an exception gets a fresh one, since
    what a failure left behind must cost no other check; a check with a memory budget has one of its own. What follows
    which ending stands in `judging.problem.CONSEQUENCES`.

    Hidden cases of several checks share processes: each check draws its inputs independently, so those of one check
    help with no other, and the author learns of each check only whether it failed.
    """

    def __init__(self, artifact: Artifact, sandbox: Sandbox, oracle: Oracle, time_factor: float) -> None:
        self._artifact, self._sandbox, self._oracle, self._time_factor = artifact, sandbox, oracle, time_factor
        self._checks = sandbox.lab.checks.checks
        self._processes: list[Process] = []  # to be asked on; rank 0 is the first, which answers other checks too
        self._ended: list[Process] = []
        self._has_loaded = False
        self._endless: set[int] = set()  # statements of the cells that a process has found not to end, by number
        self._kernel_sources: dict[tuple[str, ...], dict[str, str]] = {}
        self._hidden = False  # whether hidden cases are asked by now
        # Checks whose cases are still to be asked. Processes are ended where traced checks and others meet: those that
        # may keep something from public cases come last, and begin the hidden ones.
        self._left = sorted(self._checks, key=lambda check: not check.traced)
        self._verdicts: dict[str, Verdict] = {}
        self._time_s: defaultdict[str, float] = defaultdict(float)  # by check, as is the next
        self._call_s: defaultdict[str, float] = defaultdict(float)
        self._budget_s = max(BUDGET_S, sum(check.time_limit_s for check in self._checks)) * time_factor
        self._wall_limit_s = WALL_CLOCK_FACTOR * self._budget_s
        self._start, self._queued_s = time.monotonic(), 0.0

    def form_verdicts(self) -> list[Verdict]:
        """A verdict on each check. Where the sandbox died it is tried again alone; `MAX_CRASHES` times is its own doing."""
        crashes: Counter[tuple[bool, int]] = Counter()
        exclusive = False
        try:
            while self._has_checks_left():
                queued = time.monotonic()
                try:
                    with self._sandbox.access.hold(exclusive=exclusive):
                        self._queued_s += time.monotonic() - queued
                        self._run_checks(exclusive=exclusive)
                    exclusive = False
                except _RetryAloneError:
                    exclusive = True
                except SandboxDiedError:
                    stage = self._hidden, len(self._left)
                    crashes[stage] += exclusive
                    exclusive = True
                    if crashes[stage] == MAX_CRASHES:
                        why = Mismatch("it ended the whole sandbox", f"{MAX_CRASHES} times", "an answer")
                        self._fail_remaining(Problem(why, Ending.LOAD_FAILED))
        finally:
            for process in self._ended:
                process.job.close()
        return [
            replace(
                self._verdicts[check.name],
                seed=self._oracle.seeds[check.name],
                time_s=self._time_s[check.name],
                call_s=self._call_s[check.name],
            )
            for check in self._checks
        ]

    def _has_checks_left(self) -> bool:
        """Whether a check is left to be asked. After the last public case the hidden cases begin."""
        if not self._left and not self._hidden:
            self._hidden = True
            undecided = (check for check in self._checks if check.name not in self._verdicts)
            self._left = sorted(undecided, key=lambda check: check.traced)
            self._budget_s = max(self._budget_s, self._worked_s + HIDDEN_FRACTION * self._budget_s)
            self._wall_limit_s = max(self._wall_limit_s, self._wall_s + HIDDEN_FRACTION * self._wall_limit_s)
        return bool(self._left)

    def _run_checks(self, *, exclusive: bool) -> None:
        """Run check after check until none is left; `exclusive`: one check, while other submissions wait."""
        try:
            while self._has_checks_left():
                check, start, busy_s = self._left[0], time.monotonic(), self._busy_s
                try:
                    verdict, problem = self._judge_check(check, exclusive=exclusive)
                finally:
                    self._time_s[check.name] += time.monotonic() - start
                    self._call_s[check.name] += self._busy_s - busy_s
                del self._left[0]
                if self._hidden or not verdict.passed:
                    self._verdicts[check.name] = verdict
                if problem is not None and problem.consequence.ends_judging:
                    self._fail_remaining(problem)
                if exclusive:
                    return
        finally:
            self._end(*self._processes)

    def _fail_remaining(self, problem: Problem) -> None:
        """Deny the checks that are left, for one reason."""
        self._verdicts.update((check.name, fail_check(check, problem)) for check in self._left)
        self._left.clear()

    @property
    def _busy_s(self) -> float:
        """Seconds that the judge has waited for processes of this submission."""
        return sum(process.busy_s for process in [*self._ended, *self._processes])

    @property
    def _worked_s(self) -> float:
        """Seconds that processes of this submission were at work, and that comparing their answers took."""
        for process in self._processes:
            process.settle()
        return sum(process.worked_s for process in [*self._ended, *self._processes]) + self._oracle.busy_s

    @property
    def _wall_s(self) -> float:
        """Seconds by the clock since judging began, without those in which other submissions had their turn."""
        return time.monotonic() - self._start - self._queued_s

    def _end(self, *processes: Process) -> None:
        """Have processes killed, and go on while they die; all are dead before the verdicts are given."""
        for process in processes:
            process.settle()
            process.job.release()
            self._ended.append(process)
            if process in self._processes:
                self._processes.remove(process)  # in place: who adds to the list may be waiting for this

    def _judge_check(self, check: Check, *, exclusive: bool) -> tuple[Verdict, Problem | None]:
        """The verdict on a check, after as many attempts as their endings allow, and the problem of the last.

        Raises `_RetryAloneError` where the next attempt has to be made alone.
        """
        if not self._cases(check):
            return pass_check(check), None
        run = self._run_in_own_processes if check.memory_bytes is not None else self._run_in_shared_processes
        try:
            problem, tries = run(check), 1
            while problem is not None and tries <= problem.consequence.retries:
                problem, tries = run(check), tries + 1
        except CheckError as fault:
            return Verdict(check.name, check.title, check.points, 0.0, fault=str(fault)), None
        if problem is None:
            return pass_check(check), None
        if problem.consequence.retries_alone and not exclusive:
            raise _RetryAloneError
        if problem.ending in (Ending.KILLED, Ending.TIMEOUT) and not self._has_loaded:
            problem = replace(problem, ending=Ending.LOAD_FAILED)
        return fail_check(check, problem), problem

    def _find_budget_problem(self) -> Problem | None:
        """The problem of a submission that has taken more time than all its checks may take, or None.

        It names no time that was measured: a submission could tell by it what it has seen.
        """
        spent = {
            f"{self._budget_s:g} s at work": self._worked_s > self._budget_s,
            f"{self._wall_limit_s:g} s by the clock": self._wall_s > self._wall_limit_s,
        }
        for limit, is_over in spent.items():
            if is_over:
                late = Mismatch("the submission takes too long", f"more than {limit}", "less for all checks together")
                return Problem(late, Ending.BUDGET_EXCEEDED)
        return None

    def _run_in_shared_processes(self, check: Check) -> Problem | None:
        """Run a check in the processes that answered the checks before, and in new ones where there are too few."""
        if any((one.traced, one.kernel_sources) != (check.traced, _lent_sources(check)) for one in self._processes):
            self._end(*self._processes)
        problem = self._run_cases(self._processes, check, self._checks)
        if problem is not None and not problem.consequence.keeps_process:
            self._end(*self._processes)
        return problem

    def _run_in_own_processes(self, check: Check) -> Problem | None:
        """Run a check in processes of its own, so that the memory in use is this check's."""
        processes: list[Process] = []
        try:
            return self._run_cases(processes, check, (check,))
        finally:
            self._end(*processes)

    def _open(self, *, traced: bool, kernel_sources: tuple[str, ...] = (), is_first: bool = True) -> Process:
        return Process(
            self._sandbox.open_job(traced=traced),
            traced=traced,
            time_factor=self._time_factor,
            kernel_sources=kernel_sources,
            deadline=time.monotonic() + self._wall_limit_s - self._wall_s,
            is_first=is_first,
        )

    def _read_sources(self, check: Check) -> dict[str, str] | Problem:
        """The texts that a traced check needs, by name, from a process that is asked, once, for nothing else."""
        if check.kernel_sources in self._kernel_sources:
            return self._kernel_sources[check.kernel_sources]
        case = check.cases[0]
        process = self._open(traced=False)
        try:
            if problem := self._load([process], check, (check,), {}):
                return problem
            seed = self._oracle.random_seed(check, case)
            got = self._receive(process, check, case, lambda: process.request_sources(check, seed))
        finally:
            self._end(process)
        try:
            kernel_sources = got if isinstance(got, Problem) else read_sources(check.kernel_sources, got)
        except InputError as error:
            return Problem(Mismatch(error.what, str(error.got or ""), str(error.expected or "")), Ending.WRONG, case)
        if not isinstance(kernel_sources, Problem):
            self._kernel_sources[check.kernel_sources] = kernel_sources
        return kernel_sources

    def _load(
        self, processes: Sequence[Process], check: Check, checks: Sequence[Check], kernel_sources: Mapping[str, str]
    ) -> Problem | None:
        """Load the artifact into processes. A first failure ends judging, unless only the kernels were to be loaded."""
        try:
            for process in processes:
                process.send_artifact(self._artifact, check, checks, kernel_sources, self._endless)
            for process in processes:
                reply = process.receive()
                if reply.kind != "loaded":
                    may_load = self._has_loaded or check.traced
                    return Problem(read_problem(reply), Ending.WRONG if may_load else Ending.LOAD_FAILED)
                self._endless.update(read_endless(reply))
        except wire.WireError as error:
            mismatch, ending = process.explain(error, "the exported cells")
            if ending not in (Ending.KILLED, Ending.TIMEOUT):
                ending = Ending.WRONG if self._has_loaded else Ending.LOAD_FAILED
            return Problem(mismatch, ending)
        self._has_loaded = True
        return None

    def _cases(self, check: Check) -> tuple[Case, ...]:
        """The cases of a check that are asked now: the public ones, or the hidden ones."""
        return tuple(case for case in check.cases if case.hidden is self._hidden)

    def _run_cases(self, processes: list[Process], check: Check, checks: Sequence[Check]) -> Problem | None:
        """Run case after case; the first problem, or None. Adds processes where `processes` has too few.

        Before the hidden cases a fresh process is asked the public ones again, so that an answer shows which a
        submission has kept from an earlier call. Kernels that are traced keep nothing.
        """
        cases = self._cases(check)
        is_fresh = not processes or check.name not in processes[0].checks_run
        for case in check.cases if self._hidden and is_fresh and not check.traced else cases:
            if problem := self._find_budget_problem():
                return problem
            if problem := self._run_case(processes, check, case, checks):
                # Once hidden cases have begun, feedback quotes nothing of the submission, not even why loading failed.
                return replace(problem, case=case if case.hidden else cases[0]) if self._hidden else problem
        return None

    def _run_case(self, processes: list[Process], check: Check, case: Case, checks: Sequence[Check]) -> Problem | None:
        """Run one case; its problem, or None."""
        self._oracle.prefetch_inputs(check, case)
        if not (check.ranks and self._has_loaded) and (problem := self._add(processes, 1, check, checks)):
            return problem
        inputs = self._oracle.inputs(check, case)
        size = len(split_ranks(inputs)) if check.ranks else 1
        if problem := self._add(processes, size, check, checks):
            return problem
        processes[0].checks_run.add(check.name)
        seed = self._oracle.random_seed(check, case)
        send = self._send_to_ranks if check.ranks else self._send_to_process
        return send(processes[:size], check, case, inputs, seed)

    def _add(self, processes: list[Process], size: int, check: Check, checks: Sequence[Check]) -> Problem | None:
        """Add processes that have loaded the artifact until there are `size`."""
        if len(processes) >= size:
            return None
        kernel_sources = self._read_sources(check) if _lent_sources(check) else {}
        if isinstance(kernel_sources, Problem):
            return kernel_sources
        new = [
            self._open(traced=check.traced, kernel_sources=_lent_sources(check), is_first=rank == 0)
            for rank in range(len(processes), size)
        ]
        processes += new
        return self._load(new, check, checks, kernel_sources)

    def _send_to_ranks(
        self, processes: Sequence[Process], check: Check, case: Case, inputs: Arrays, seed: int
    ) -> Problem | None:
        got = World(processes).run(check, case, inputs, seed, lambda: self._prefetch(check, case))
        return got if isinstance(got, Problem) else self._compare(check, case, got)

    def _send_to_process(
        self, processes: Sequence[Process], check: Check, case: Case, inputs: Arrays, seed: int
    ) -> Problem | None:
        (process,) = processes

        def send() -> None:
            process.send_case(check, inputs, seed)
            self._prefetch(check, case)

        got = self._receive(process, check, case, send)
        return got if isinstance(got, Problem) else self._compare(check, case, got)

    def _receive(self, process: Process, check: Check, case: Case, send: Callable[[], None]) -> Arrays | Problem:
        """Have a question put to a process; the arrays of its answer, or why there are none."""
        try:
            send()
            reply = process.receive()
            if reply.kind == "query":
                reply = answer_queries(process, self._oracle, check, case, reply)
        except wire.WireError as error:
            return Problem(*process.explain(error, "it"), case)
        if reply.kind == "answer":
            return reply.arrays
        is_todo = reply.meta.get("unfinished") is True
        return Problem(read_problem(reply), Ending.NOT_IMPLEMENTED if is_todo else Ending.WRONG, case)

    def _compare(self, check: Check, case: Case, got: Arrays) -> Problem | None:
        try:
            mismatch = self._oracle.compare(check, case, got)
        except AnswerTooLargeError as error:
            return Problem(error.mismatch, Ending.ANSWER_TOO_LARGE, case)
        return None if mismatch is None else Problem(mismatch, Ending.WRONG, case)

    def _prefetch(self, check: Check, case: Case) -> None:
        """Begin to compute what is expected, and to draw what comes next, while the submission is at work."""
        self._oracle.prefetch_expected(check, case)
        upcoming = [(one, each) for one in self._left for each in self._cases(one)]
        if (check, case) in upcoming[:-1]:
            self._oracle.prefetch_inputs(*upcoming[upcoming.index((check, case)) + 1])


def _lent_sources(check: Check) -> tuple[str, ...]:
    """Names of the texts that a process of a check is lent: it may not ask the submission's own functions."""
    return check.kernel_sources if check.traced else ()
