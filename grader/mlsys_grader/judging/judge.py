"""Form the verdicts on a submission, in a process that never runs the submission's code.

For each case the judge draws inputs from a secret seed, sends the public ones into the sandbox, waits for arrays by its
own clock, and compares them with an oracle that the sandbox never sees.

Public cases of all checks run first, then hidden cases of the checks that passed. Feedback quotes the submission only
for public cases, that is, before it has seen any hidden input, so no channel between its processes can leak hidden
inputs into the feedback.
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
"""Sandbox crashes with this submission alone in it before they are blamed on the submission."""
BUDGET_S = 120.0
"""Total run time of a submission, unless its checks' time limits add up to more."""
WALL_CLOCK_FACTOR = 4.0
"""Wall-clock limit as a multiple of the budget, however busy the machine is."""
HIDDEN_FRACTION = 0.5
"""Fraction of both limits reserved for the hidden cases, whatever the public cases took."""


class _RetryAloneError(Exception):
    """The last check must be retried while no other submission runs."""


def judge(
    artifact: Artifact,
    sandbox: Sandbox,
    oracles: OracleServer,
    *,
    public_seed: int = 0,
    time_factor: float = 1.0,
    seeds: Mapping[str, int] | None = None,
) -> list[Verdict]:
    """Judge a submission: one verdict per check of the lab.

    `time_factor` scales every time limit, for slow machines. `seeds` replays recorded secret seeds by check name. A
    submission that fails to load is tried once, unless it timed out. Raises `CourseError` if the sandbox cannot be kept
    alive; a crash caused by this submission alone is a verdict.
    """
    given = seeds or {}
    drawn = {check.name: given.get(check.name) or draw_seed(check, public_seed) for check in sandbox.lab.checks.checks}
    with Oracle(oracles, drawn, time_factor) as oracle:
        return _SubmissionJudge(artifact, sandbox, oracle, time_factor).form_verdicts()


class _SubmissionJudge:
    """Run one submission through all checks, in as few processes as its behaviour allows.

    A process that answered correctly is reused. After a wrong answer or an exception the next check gets a fresh
    process, so that one failure costs no other check; so does a check with a memory budget.
    `judging.problem.CONSEQUENCES` lists what follows from each ending.

    Hidden cases of several checks share processes: each check draws its inputs independently, and the author only
    learns whether a check failed.
    """

    def __init__(self, artifact: Artifact, sandbox: Sandbox, oracle: Oracle, time_factor: float) -> None:
        self._artifact, self._sandbox, self._oracle, self._time_factor = artifact, sandbox, oracle, time_factor
        self._checks = sandbox.lab.checks.checks
        self._processes: list[Process] = []  # reusable; the first is rank 0 and also runs single-rank checks
        self._ended: list[Process] = []
        self._has_loaded = False
        self._endless: set[int] = set()  # numbers of cell statements that never end
        self._kernel_sources: dict[tuple[str, ...], dict[str, str]] = {}
        self._hidden = False  # whether the hidden phase has begun
        # Checks still to run. Traced checks keep nothing between cases: they come last among the public cases and first
        # among the hidden ones, so that processes change kind only once.
        self._left = sorted(self._checks, key=lambda check: not check.traced)
        self._verdicts: dict[str, Verdict] = {}
        self._time_s: defaultdict[str, float] = defaultdict(float)  # by check name, like the next
        self._call_s: defaultdict[str, float] = defaultdict(float)
        self._budget_s = max(BUDGET_S, sum(check.time_limit_s for check in self._checks)) * time_factor
        self._wall_limit_s = WALL_CLOCK_FACTOR * self._budget_s
        self._start, self._queued_s = time.monotonic(), 0.0

    def form_verdicts(self) -> list[Verdict]:
        """Judge every check. After a sandbox crash, retry with the sandbox to itself; blame the submission after
        `MAX_CRASHES`.
        """
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
        """Whether checks remain; moves on from public to hidden cases when the public ones are done."""
        if not self._left and not self._hidden:
            self._hidden = True
            undecided = (check for check in self._checks if check.name not in self._verdicts)
            self._left = sorted(undecided, key=lambda check: check.traced)
            self._budget_s = max(self._budget_s, self._worked_s + HIDDEN_FRACTION * self._budget_s)
            self._wall_limit_s = max(self._wall_limit_s, self._wall_s + HIDDEN_FRACTION * self._wall_limit_s)
        return bool(self._left)

    def _run_checks(self, *, exclusive: bool) -> None:
        """Run the remaining checks, or only the next one if `exclusive` (other submissions are waiting)."""
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
        """Fail all remaining checks for one reason."""
        self._verdicts.update((check.name, fail_check(check, problem)) for check in self._left)
        self._left.clear()

    @property
    def _busy_s(self) -> float:
        """Seconds that the judge has waited for this submission's processes."""
        return sum(process.busy_s for process in [*self._ended, *self._processes])

    @property
    def _worked_s(self) -> float:
        """Seconds of work by this submission's processes, plus the time to compare their answers."""
        for process in self._processes:
            process.settle()
        return sum(process.worked_s for process in [*self._ended, *self._processes]) + self._oracle.busy_s

    @property
    def _wall_s(self) -> float:
        """Wall-clock seconds since judging began, except while other submissions had the sandbox to themselves."""
        return time.monotonic() - self._start - self._queued_s

    def _end(self, *processes: Process) -> None:
        """Kill processes without waiting for them; `form_verdicts` waits at the end."""
        for process in processes:
            process.settle()
            process.job.release()
            self._ended.append(process)
            if process in self._processes:
                self._processes.remove(process)  # in place: `_add` may hold the same list

    def _judge_check(self, check: Check, *, exclusive: bool) -> tuple[Verdict, Problem | None]:
        """Return the verdict on a check after its retries, and the last problem.

        Raises `_RetryAloneError` if the next attempt needs the sandbox to itself.
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
        """Return a problem if the submission has exceeded its total time, else None.

        The message names no measured time: the submission could encode hidden inputs in it.
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
        """Run a check in the processes that ran earlier checks, adding new ones as needed."""
        if any((one.traced, one.kernel_sources) != (check.traced, _lent_sources(check)) for one in self._processes):
            self._end(*self._processes)
        problem = self._run_cases(self._processes, check, self._checks)
        if problem is not None and not problem.consequence.keeps_process:
            self._end(*self._processes)
        return problem

    def _run_in_own_processes(self, check: Check) -> Problem | None:
        """Run a check in fresh processes, so that only this check's memory counts."""
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
        """Return the kernel sources that a traced check needs, from a process used for nothing else."""
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
        """Load the artifact into processes. The first failure ends judging, unless only kernels were loaded."""
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
        """Cases of a check to run in the current phase: public or hidden."""
        return tuple(case for case in check.cases if case.hidden is self._hidden)

    def _run_cases(self, processes: list[Process], check: Check, checks: Sequence[Check]) -> Problem | None:
        """Run cases until one fails; return its problem, or None. Adds processes if `processes` has too few.

        A fresh process runs the public cases again before the hidden ones, so that results cached from an earlier call
        show. Traced kernels cache nothing.
        """
        cases = self._cases(check)
        is_fresh = not processes or check.name not in processes[0].checks_run
        for case in check.cases if self._hidden and is_fresh and not check.traced else cases:
            if problem := self._find_budget_problem():
                return problem
            if problem := self._run_case(processes, check, case, checks):
                # In the hidden phase feedback quotes nothing from the submission, not even why loading failed.
                return replace(problem, case=case if case.hidden else cases[0]) if self._hidden else problem
        return None

    def _run_case(self, processes: list[Process], check: Check, case: Case, checks: Sequence[Check]) -> Problem | None:
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
        """Send a request and return the arrays of the answer, or the problem."""
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
        """Start computing the expected answer, and drawing the next inputs, while the submission works."""
        self._oracle.prefetch_expected(check, case)
        upcoming = [(one, each) for one in self._left for each in self._cases(one)]
        if (check, case) in upcoming[:-1]:
            self._oracle.prefetch_inputs(*upcoming[upcoming.index((check, case)) + 1])


def _lent_sources(check: Check) -> tuple[str, ...]:
    """Kernel sources that a process receives as data, because it may not call the submission's own functions."""
    return check.kernel_sources if check.traced else ()
