"""Judge over a Ray cluster: workers on any of its nodes, the same verdicts.

    head ── name, text and seeds of an artifact ──▶ worker (a Ray actor) ── frames ──▶ its own sandbox, on its node
         ◀────────── fields of the verdicts ───────

A worker finds the lab by its name in the checkout of its own node, and is not used when that differs from the head's.
Checks with a performance target go to workers that hold a GPU, one each, when the cluster has GPUs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mlsys_checks.sandboxed.spec import Check
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.engines import Result, Task, cluster
from mlsys_grader.engines.node import Judge, compute_fingerprint
from mlsys_grader.judging.performance import PerformanceVerdict
from mlsys_grader.judging.verdict import Verdict
from mlsys_lab.errors import CourseError
from mlsys_lab.stack.labinfo import labs_root

Ref = Any
"""A ray.ObjectRef: what an actor will answer."""
START_S = 180.0
"""Longest wait for the first worker: a node may have to be started, and torch imported from a slow disk."""
TRIES = 3
"""How often a submission is given to a worker before it counts as what ends workers."""


@dataclass(eq=False)
class _Worker:
    """An actor; `gpu` says which of the two kinds of checks it takes."""

    actor: Any
    gpu: bool


@dataclass(eq=False)
class _Open:
    """A submission on its way: the verdicts so far, and how many parts are still to come."""

    task: Task
    waiting: int
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    error: str = ""


@dataclass(eq=False)
class _Part:
    """What one worker does of a submission: its checks without a GPU, or those with one."""

    whole: _Open
    gpu: bool
    tries: int = 0


class RayEngine:
    """Up to `workers` submissions at a time on the cluster at `address`; one is started on this machine without it.

    Use it as a context manager. `time_factor` stretches every time limit; `backend` is the sandbox on every node,
    the first that works if None. Where Ray is running in this process already it is used, and left running.
    `address` is HOST:PORT as `ray start --head` prints it, and this machine must be one of the cluster's. Raises
    `MissingToolError` without Ray, `InputError` where nothing answers at the address, `CourseError` when a node has
    another version of the lab or no worker becomes ready.
    """

    def __init__(
        self,
        lab: GradedLab,
        *,
        workers: int,
        time_factor: float = 1.0,
        address: str | None = None,
        unsafe: bool = False,
        backend: str | None = None,
    ) -> None:
        self.lab = lab
        self.workers = workers
        self.time_factor = time_factor
        self.address = address
        self.unsafe = unsafe
        self.backend = backend
        self._workers: set[_Worker] = set()
        self._starting: dict[Ref, _Worker] = {}
        self._idle: list[_Worker] = []
        self._queue: deque[_Part] = deque()
        self._running: dict[Ref, tuple[_Worker, _Part]] = {}
        self._exhausted = False
        self._failed_starts = 0
        # One thread may be waiting for verdicts while another closes the engine.
        self._busy = threading.Lock()
        self._closed = threading.Event()

    def __enter__(self) -> RayEngine:
        self._ray = cluster.import_ray(own=self.address is None)
        self._connected = not self._ray.is_initialized()
        if self._connected and self.address is None:
            cluster.start_ray(self._ray, self.workers)
        elif self._connected and self.address is not None:
            cluster.join_cluster(self._ray, self.address)
        try:
            self._fingerprint = compute_fingerprint(self.lab)
            self._hire_all()
            while not self._idle:
                self._await()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for worker in list(self._workers):  # which ends the waiting for them
            self._ray.kill(worker.actor)
        with self._busy:
            if self._connected:
                self._ray.shutdown()

    def judge_all(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """One result per task, as they come; tasks are taken as workers become free. Ends when the engine is closed.

        A task whose worker dies is given to another; one that ends three is a result with an error.
        """
        source, self._exhausted = iter(tasks), False
        try:
            while (results := self._go_on(source)) is not None:
                yield from results
        finally:
            self._queue.clear()
            with self._busy:  # cut off: what still runs is of no use, and its workers are not free
                for worker, _ in self._running.values():
                    if not self._closed.is_set():
                        self._replace(worker)
                self._running.clear()

    def _go_on(self, source: Iterator[Task]) -> list[Result] | None:
        """Hand out what can be handed out and wait for something to happen; None when there is nothing more to do."""
        with self._busy:
            if not self._closed.is_set():
                self._hand_out(source)
            if self._closed.is_set() or (self._exhausted and not self._running and not self._queue):
                return None
            done = self._await()
            if self._closed.is_set():
                return None
            wholes = [self._collect(ref, *self._running.pop(ref)) for ref in done]
            return [self._result(whole) for whole in wholes if not whole.waiting]

    def _hand_out(self, source: Iterator[Task]) -> None:
        """Give every idle worker something to do; take a task from the source only for one who would have nothing."""
        for worker in list(self._idle):
            while (part := next((p for p in self._queue if p.gpu == worker.gpu), None)) is None:
                if self._exhausted or len(self._queue) > self.workers:
                    break
                if (task := next(source, None)) is None:
                    self._exhausted = True
                    break
                whole = _Open(task, len(self._checks))
                self._queue.extend(_Part(whole, gpu) for gpu in self._checks)
            if part is None:
                continue
            self._queue.remove(part)
            self._idle.remove(worker)
            part.tries += 1
            artifact = part.whole.task.artifact
            ref = worker.actor.judge.remote(artifact.name, artifact.source, dict(part.whole.task.seeds))
            self._running[ref] = (worker, part)

    def _await(self) -> list[Ref]:
        """Wait until something happens; which of the running are done. Workers that became ready become idle."""
        refs = [*self._running, *self._starting]
        done, _ = self._ray.wait(refs, num_returns=1, timeout=None if self._running else START_S)
        if not done:
            got, help = f"none in {START_S:g} s", "`ray status`: is a CPU free?"
            raise CourseError("no worker of the cluster became ready", got=got, help=help)
        for ref in done:
            if (worker := self._starting.pop(ref, None)) is not None and not self._closed.is_set():
                self._welcome(ref, worker)
        return [ref for ref in done if ref in self._running]

    def _welcome(self, ref: Ref, worker: _Worker) -> None:
        try:
            refusal = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts == TRIES:
                raise CourseError("workers of the cluster die as they start", got=_line(error)) from None
            self._replace(worker)
            return
        if refusal:
            raise CourseError(refusal)
        self._failed_starts = 0
        self._idle.append(worker)

    def _collect(self, ref: Ref, worker: _Worker, part: _Part) -> _Open:
        """Take what a worker answered; when it died, or its node did, let another try."""
        whole = part.whole
        try:
            answer = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            self._replace(worker)
            if part.tries < TRIES:
                self._queue.append(part)
                return whole
            answer = {"verdicts": [], "error": f"{TRIES} workers ended while they judged it: {_line(error)}"}
        else:
            self._idle.append(worker)
        whole.waiting -= 1
        whole.error = whole.error or answer["error"]
        whole.verdicts.update({fields["check"]: _verdict(fields) for fields in answer["verdicts"]})
        return whole

    def _result(self, whole: _Open) -> Result:
        if whole.error:
            return Result(whole.task.student, error=whole.error)
        verdicts = tuple(whole.verdicts[check.name] for check in self.lab.checks.checks)
        return Result(whole.task.student, verdicts)

    def _hire_all(self) -> None:
        """Workers for the checks without a performance target, and for the others where the cluster has GPUs."""
        gpus = int(self._ray.cluster_resources().get("GPU", 0))
        checks = self.lab.checks.checks
        by_kind = {gpu: [check.name for check in checks if _measured(check) == gpu] for gpu in (False, True)}
        if not gpus or not by_kind[True]:
            by_kind = {False: [check.name for check in checks]}
        self._checks = {gpu: names for gpu, names in by_kind.items() if names}
        for gpu in self._checks:
            for _ in range(min(gpus, self.workers) if gpu else self.workers):
                self._hire(gpu)

    def _hire(self, gpu: bool) -> None:
        labs = self.lab.info.folder.parent
        actor = (
            self._ray.remote(Judge)
            .options(num_cpus=1, num_gpus=int(gpu))
            .remote(
                lab=self.lab.name,
                labs="" if labs == labs_root() else str(labs),
                path=self.lab.foreign_path or "",
                checks=self._checks[gpu],
                time_factor=self.time_factor,
                unsafe=self.unsafe,
                backend=self.backend,
                measures=gpu,
            )
        )
        worker = _Worker(actor, gpu)
        self._workers.add(worker)
        self._starting[actor.ready.remote(self._fingerprint)] = worker

    def _replace(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._ray.kill(worker.actor)
        self._hire(worker.gpu)


def _measured(check: Check) -> bool:
    return check.performance is not None


def _verdict(fields: dict[str, Any]) -> Verdict:
    if (speed := fields["performance"]) is not None:
        fields = {**fields, "performance": PerformanceVerdict(**speed)}
    return Verdict(**fields)


def _line(error: Exception) -> str:
    """Ray's own word on how a worker died, its first line."""
    return str(error).strip().partition("\n")[0][:300]
