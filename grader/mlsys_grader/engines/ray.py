"""Judge on a Ray cluster: workers on any node, the same verdicts.

    head ── name, text and seeds of an artifact ──▶ worker (a Ray actor) ── frames ──▶ its own sandbox, on its node
         ◀────────── fields of the verdicts ───────

A worker finds the lab by name in its node's checkout, and is rejected if that differs from the head's. If the cluster
has GPUs, checks with a performance target run on workers that hold one GPU each.
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
"""A ray.ObjectRef: the future of an actor's answer."""
START_S = 180.0
"""Longest wait for the first worker: a node may have to start, and import torch from a slow disk."""
MAX_TRIES = 3
"""Attempts per submission before it is blamed for the deaths of its workers."""


@dataclass(eq=False)
class _Worker:
    """An actor; `gpu`: it takes the checks with a performance target."""

    actor: Any
    gpu: bool


@dataclass(eq=False)
class _InFlight:
    """A submission in flight: verdicts so far, and how many parts are pending."""

    task: Task
    waiting: int
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    error: str = ""


@dataclass(eq=False)
class _Part:
    """One worker's part of a submission: its checks with a GPU, or those without."""

    submission: _InFlight
    gpu: bool
    tries: int = 0


class RayEngine:
    """Judge up to `workers` submissions at a time on the cluster at `address`, or on a new one on this machine.

    Use it as a context manager. `time_factor` scales every time limit; `backend` is the sandbox on every node, the
    first that works if None. A Ray that already runs in this process is used and left running. `address` is HOST:PORT
    as `ray start --head` prints it; this machine must be part of the cluster. Raises `MissingToolError` without Ray,
    `InputError` if nothing answers at the address, `CourseError` if a node has another version of the lab or no worker
    becomes ready.
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
        # One thread may wait for verdicts while another closes the engine.
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
            self._start_workers()
            while not self._idle:
                self._await()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for worker in list(self._workers):  # this ends the wait for them
            self._ray.kill(worker.actor)
        with self._busy:
            if self._connected:
                self._ray.shutdown()

    def judge_all(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield one result per task as they complete; takes tasks as workers become free. Ends when the engine is
        closed.

        If a worker dies, its task is given to another; after `MAX_TRIES` deaths the result is an error.
        """
        source, self._exhausted = iter(tasks), False
        try:
            while (results := self._step(source)) is not None:
                yield from results
        finally:
            self._queue.clear()
            with self._busy:  # cut off: running calls are useless, and their workers are not free
                for worker, _ in self._running.values():
                    if not self._closed.is_set():
                        self._restart_worker(worker)
                self._running.clear()

    def _step(self, source: Iterator[Task]) -> list[Result] | None:
        """Dispatch what can be dispatched and wait for an event; None when all is done."""
        with self._busy:
            if not self._closed.is_set():
                self._dispatch(source)
            if self._closed.is_set() or (self._exhausted and not self._running and not self._queue):
                return None
            done = self._await()
            if self._closed.is_set():
                return None
            wholes = [self._collect(ref, *self._running.pop(ref)) for ref in done]
            return [self._result(submission) for submission in wholes if not submission.waiting]

    def _dispatch(self, source: Iterator[Task]) -> None:
        """Give every idle worker a part; take a new task only if the queue has none for it."""
        for worker in list(self._idle):
            while (part := next((p for p in self._queue if p.gpu == worker.gpu), None)) is None:
                if self._exhausted or len(self._queue) > self.workers:
                    break
                if (task := next(source, None)) is None:
                    self._exhausted = True
                    break
                submission = _InFlight(task, len(self._checks))
                self._queue.extend(_Part(submission, gpu) for gpu in self._checks)
            if part is None:
                continue
            self._queue.remove(part)
            self._idle.remove(worker)
            part.tries += 1
            artifact = part.submission.task.artifact
            ref = worker.actor.judge.remote(artifact.name, artifact.source, dict(part.submission.task.seeds))
            self._running[ref] = (worker, part)

    def _await(self) -> list[Ref]:
        """Wait for an event; return the finished calls. Workers that became ready become idle."""
        refs = [*self._running, *self._starting]
        done, _ = self._ray.wait(refs, num_returns=1, timeout=None if self._running else START_S)
        if not done:
            got, help = f"none in {START_S:g} s", "`ray status`: is a CPU free?"
            raise CourseError("no worker of the cluster became ready", got=got, help=help)
        for ref in done:
            if (worker := self._starting.pop(ref, None)) is not None and not self._closed.is_set():
                self._on_ready(ref, worker)
        return [ref for ref in done if ref in self._running]

    def _on_ready(self, ref: Ref, worker: _Worker) -> None:
        try:
            refusal = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts == MAX_TRIES:
                raise CourseError("workers of the cluster die as they start", got=_line(error)) from None
            self._restart_worker(worker)
            return
        if refusal:
            raise CourseError(refusal)
        self._failed_starts = 0
        self._idle.append(worker)

    def _collect(self, ref: Ref, worker: _Worker, part: _Part) -> _InFlight:
        """Store a worker's answer; if it died, or its node did, retry on another."""
        submission = part.submission
        try:
            answer = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            self._restart_worker(worker)
            if part.tries < MAX_TRIES:
                self._queue.append(part)
                return submission
            answer = {"verdicts": [], "error": f"{MAX_TRIES} workers ended while they judged it: {_line(error)}"}
        else:
            self._idle.append(worker)
        submission.waiting -= 1
        submission.error = submission.error or answer["error"]
        submission.verdicts.update({fields["check"]: _verdict(fields) for fields in answer["verdicts"]})
        return submission

    def _result(self, submission: _InFlight) -> Result:
        if submission.error:
            return Result(submission.task.student, error=submission.error)
        verdicts = tuple(submission.verdicts[check.name] for check in self.lab.checks.checks)
        return Result(submission.task.student, verdicts)

    def _start_workers(self) -> None:
        """Start workers for the checks without a performance target, and for the others if the cluster has GPUs."""
        gpus = int(self._ray.cluster_resources().get("GPU", 0))
        checks = self.lab.checks.checks
        by_kind = {gpu: [check.name for check in checks if _measured(check) == gpu] for gpu in (False, True)}
        if not gpus or not by_kind[True]:
            by_kind = {False: [check.name for check in checks]}
        self._checks = {gpu: names for gpu, names in by_kind.items() if names}
        for gpu in self._checks:
            for _ in range(min(gpus, self.workers) if gpu else self.workers):
                self._start_worker(gpu)

    def _start_worker(self, gpu: bool) -> None:
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

    def _restart_worker(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._ray.kill(worker.actor)
        self._start_worker(worker.gpu)


def _measured(check: Check) -> bool:
    return check.performance is not None


def _verdict(fields: dict[str, Any]) -> Verdict:
    if (speed := fields["performance"]) is not None:
        fields = {**fields, "performance": PerformanceVerdict(**speed)}
    return Verdict(**fields)


def _line(error: Exception) -> str:
    """The first line of Ray's report on how a worker died."""
    return str(error).strip().partition("\n")[0][:300]
