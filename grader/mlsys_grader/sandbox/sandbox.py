"""A sandbox: a launcher of submissions (`inside.worker`) that is restarted when it dies, and the jobs in it.

Each job is a child of the launcher in its own namespaces (`inside.jail`). A single crash of a launcher is blamed on
nothing: it is restarted, and the submissions that were running are judged again (`judging.judge`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.sandbox.backend import NONE, choose_backend, launch
from mlsys_grader.sandbox.container import Containers
from mlsys_grader.sandbox.device import Device
from mlsys_grader.sandbox.inside import wire
from mlsys_grader.sandbox.launcher import ACQUIRE_S, Job, Launcher, SandboxDiedError
from mlsys_lab.errors import CourseError

MAX_FAILED_STARTS = 5
"""Launchers and children that may die in a row before one is ready."""
KEEPS_CRASHING = CourseError("the sandbox keeps dying", help="is there enough memory, and is something killing it?")
UNSAFE = "--unsafe: submissions run with your rights: they can read your files, use the network and change this machine"


class SharedExclusiveLock:
    """A lock held by many at once or by one exclusively; a waiting exclusive holder has priority."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing, self._waiting, self._alone = 0, 0, False

    @contextmanager
    def hold(self, *, exclusive: bool) -> Iterator[None]:
        """Wait for the lock and hold it for the block."""
        with self._changed:
            if exclusive:
                self._waiting += 1
                self._changed.wait_for(lambda: not self._sharing and not self._alone)
                self._waiting -= 1
                self._alone = True
            else:
                self._changed.wait_for(lambda: not self._waiting and not self._alone)
                self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                if exclusive:
                    self._alone = False
                else:
                    self._sharing -= 1
                self._changed.notify_all()


class Sandbox:
    """A running launcher for one lab, kept alive. Use it as a context manager; `job` is thread-safe.

    `spares` children are prestarted: as many as submissions are judged at once. `backend` is one of
    `sandbox.backend.BACKENDS`, or None for the first that works. Raises `MissingToolError` if there is none;
    `unsafe=True` does without. With `wait=False` the launcher starts in the background, and the first `wait()` or
    `job()` raises if it cannot start. Jobs may use `device`. If the lab has modules for traced kernels only, those jobs
    get a launcher of their own; `traced=True` is that sandbox.
    """

    def __init__(
        self,
        lab: GradedLab,
        *,
        unsafe: bool = False,
        backend: str | None = None,
        device: Device | None = None,
        spares: int = 1,
        wait: bool = True,
        traced: bool = False,
    ) -> None:
        self.lab = lab
        self.access = SharedExclusiveLock()
        self.backend = NONE if unsafe else choose_backend(backend)
        self._device, self._spares = device, spares
        self._inside, self._for_traced = lab, self
        if lab.info.traced and not traced and self.backend != NONE and device is None:
            self._inside = replace(lab, untraced=True)
            self._for_traced = Sandbox(lab, backend=backend, device=device, spares=spares, wait=False, traced=True)
        self._lock = threading.RLock()
        self._failed_starts = 0
        self._final_error: CourseError | None = None
        # bubblewrap dies with the thread that started it, so one long-lived thread starts them all.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="starter")
        self._launcher: Launcher | Containers | None = self._start()
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until the launcher is ready; raises `CourseError` if it cannot start."""
        with self._lock:
            self._ready_launcher()

    def close(self) -> None:
        with self._lock:
            self._final_error = CourseError("the sandbox is closed")
            self._discard_launcher()
            self._starter.shutdown()
        if self._for_traced is not self:
            self._for_traced.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    @contextmanager
    def job(self, *, traced: bool = False) -> Iterator[Job]:
        """A child that has seen no submission yet; after the block it is dead, with all its descendants."""
        job = self.open_job(traced=traced)
        try:
            yield job
        finally:
            job.close()

    def open_job(self, *, traced: bool = False) -> Job:
        """Open a child that has seen no submission; the caller closes it. A dead launcher is replaced.

        A `traced` child may load kernels only, and has the modules that count for them. Raises `CourseError` if
        children keep dying before they are ready.
        """
        if traced and self._for_traced is not self:
            return self._for_traced.open_job()
        while True:
            with self._lock:
                try:
                    job = self._ready_launcher().acquire_job()
                except OSError:
                    self._discard_launcher()
                    self._count_failure(KEEPS_CRASHING)
                    continue
            try:
                ready = wire.receive(job.channel, deadline=time.monotonic() + ACQUIRE_S)
            except wire.WireError:
                ready = wire.Frame("gone")
            if ready.kind == "ready":
                self._failed_starts = 0
                return job
            job.close()
            with self._lock:
                self._count_failure(
                    CourseError("the sandbox takes no submission", got=ready.meta.get("what", ready.kind))
                )

    def _ready_launcher(self) -> Launcher | Containers:
        """The launcher, started if there is none. Lock held."""
        while True:
            if self._final_error is not None:
                raise self._final_error
            if self._launcher is None:
                self._launcher = self._start()
            try:
                self._launcher.wait(self._spares)
                return self._launcher
            except SandboxDiedError:
                self._discard_launcher()
                self._count_failure(KEEPS_CRASHING)
            except CourseError as error:  # a definite reason: another launcher would fail too
                self._discard_launcher()
                self._final_error = error

    def _start(self) -> Launcher | Containers:
        return self._starter.submit(launch, self._inside, self.backend, device=self._device).result()

    def _count_failure(self, error: CourseError) -> None:
        """Count a failed start; after too many, give the sandbox up with `error`. Lock held."""
        self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS and self._final_error is None:
            self._final_error = error

    def _discard_launcher(self) -> None:
        """Close the launcher; the next one starts on demand. Lock held."""
        if self._launcher is not None:
            self._launcher.close()
        self._launcher = None
