"""Launchers of the sandbox that go from one test to the next: to start one takes an import of torch.

A launcher runs no submission itself and every job is a child of its own, so whose launcher it was before cannot matter.
Tests of how launchers start, die and end ask for the fixture `cold`.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.sandbox import backend, launcher
from mlsys_grader.sandbox.bubblewrap import bubblewrap
from mlsys_grader.sandbox.container import Containers
from mlsys_grader.sandbox.device import Device
from mlsys_grader.sandbox.launcher import Job, Launcher

KEPT = 3
"""So many stand idle at most; each is a process with torch in it."""


class Launchers:
    """Starts launchers, and takes them back from sandboxes that close. `launch` is `sandbox.backend.launch`, warm."""

    def __init__(self) -> None:
        self._idle: list[tuple[Hashable, Launcher]] = []
        # bubblewrap dies with the thread that started it: this one lives as long as the tests do.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="warm launchers")

    def launch(self, lab: GradedLab, name: str, *, device: Device | None = None) -> Lent | Launcher | Containers:
        """A launcher for the lab, idle or new; what is no launcher in bubblewrap is started as ever."""
        if name != "bubblewrap" or device is not None:
            return backend.launch(lab, name, device=device)
        kind = (
            *bubblewrap(lab),
            launcher.ENTRY,
            *lab.call_modules,
            any(check.traced for check in lab.checks.checks),
        )
        for found in self._idle:
            if found[0] == kind:
                self._idle.remove(found)
                return Lent(self, kind, found[1])
        return Lent(self, kind, self._starter.submit(Launcher, lab, unsafe=False).result())

    def take_back(self, kind: Hashable, idle: Launcher) -> None:
        """Keep a launcher for the next sandbox of its kind; the one that has waited longest makes room."""
        self._idle.append((kind, idle))
        if len(self._idle) > KEPT:
            self._idle.pop(0)[1].close()

    def close(self) -> None:
        """End all that are idle."""
        while self._idle:
            self._idle.pop()[1].close()
        self._starter.shutdown()


class Lent:
    """A launcher in the hands of one sandbox."""

    def __init__(self, owner: Launchers, kind: Hashable, lent: Launcher) -> None:
        self._owner, self._kind, self._launcher = owner, kind, lent
        self._ready = False
        self._jobs: list[Job] = []

    def wait(self, spares: int) -> None:
        """Wait until it is ready; one that was ready before keeps as many spares as it was first told to."""
        self._launcher.wait(spares)
        self._ready = True

    def acquire_job(self) -> Job:
        """The next of its children."""
        self._ready = False
        job = self._launcher.acquire_job()
        self._ready = True
        self._jobs.append(job)
        return job

    def close(self) -> None:
        """End the jobs that are left and give the launcher back, unless it has failed."""
        for job in self._jobs:
            with contextlib.suppress(OSError):
                job.supervisor.shutdown(socket.SHUT_WR)
        if self._ready:
            self._owner.take_back(self._kind, self._launcher)
        else:
            self._launcher.close()
