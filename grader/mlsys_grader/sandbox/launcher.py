"""The judge's handle of the process that forks a child per submission (`inside.worker`), and of one such child."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.paths import IMPORT_PATH
from mlsys_grader.sandbox.bubblewrap import bubblewrap
from mlsys_grader.sandbox.contents import HOME, make_environment
from mlsys_grader.sandbox.device import Device
from mlsys_grader.sandbox.inside import wire
from mlsys_grader.sandbox.inside.jail import SCRATCH
from mlsys_lab.errors import CourseError, MissingToolError

START_S = 180.0
ACQUIRE_S = 60.0
"""A launcher that provides no child within this time counts as dead."""
EXIT_REPORT_S = 30.0
"""Maximum wait for the supervisor's report on a child that has closed its channel; the child may still be alive."""
KILL_S = 60.0
"""A hundred processes on a busy machine take seconds to die; the next submission waits for it."""
HEADER_BYTES, ANSWER_BYTES = 64 << 10, 64 << 20
"""Limits of one answer: its header, and its arrays unless the check sets a lower one."""
ENTRY = "import sys; sys.path[:0] = {path!r}; from mlsys_grader.sandbox.inside.worker import main; main()"


class SandboxDiedError(Exception):
    """The launcher has died, with everything in it; the next job starts another."""


@dataclass(frozen=True)
class ProcessExit:
    """How a child ended: its exit status, negative for a signal, None if unknown.

    `excess` names the resource that its processes used too much of, or is ""; `answers` is False for a child that may
    still be alive.
    """

    code: int | None = None
    excess: str = ""
    answers: bool = True

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it and no limit did: something outside the sandbox may have sent it."""
        return self.code == -signal.SIGKILL and not self.excess

    def __str__(self) -> str:
        if not self.answers:
            return "its process does not answer any more"
        if self.excess:
            return f"its processes took {self.excess} together"
        if self.code is None:
            return "its process is gone"
        if self.code < 0:
            return f"the process was killed by signal {-self.code}"
        return f"the process ended itself with status {self.code}"


@dataclass(frozen=True)
class TimeUsed:
    """What a job has used so far: CPU seconds, and seconds that it was ready to run while others ran."""

    cpu_s: float
    waited_s: float


@dataclass
class Job:
    """One child that serves requests about one submission.

    Every request carries a fresh random number, and only an answer with that number counts: one written ahead, or left
    over from an earlier request, raises `wire.WireError`.
    """

    channel: socket.socket
    supervisor: socket.socket
    nonce: str = ""
    _exit: wire.Frame | None = None

    def send(self, kind: str, meta: Mapping[str, Any], arrays: Arrays | None = None, *, deadline: float) -> None:
        """Send a request. Raises what `wire.send` does."""
        self.nonce = secrets.token_hex(16)
        wire.send(self.channel, wire.Frame(kind, {**meta, "nonce": self.nonce}, arrays or {}), deadline=deadline)

    def receive(self, *, deadline: float, max_bytes: int = ANSWER_BYTES) -> wire.Frame:
        """Wait for the answer. Raises what `wire.receive` does, and `wire.WireError` for any frame but the answer."""
        limits = wire.Limits(header_bytes=HEADER_BYTES, array_bytes=max_bytes)
        frame = wire.receive(self.channel, limits=limits, deadline=deadline)
        if frame.meta.get("nonce") != self.nonce:
            raise wire.WireError("a frame that answers no question")
        return frame

    def request(
        self, kind: str, meta: Mapping[str, Any], arrays: Arrays | None = None, *, deadline: float
    ) -> wire.Frame:
        """Send a request and wait for its answer. Raises what `send` and `receive` do."""
        self.send(kind, meta, arrays, deadline=deadline)
        return self.receive(deadline=deadline)

    def read_exit(self) -> ProcessExit:
        """Report how a child that gave no answer ended. Raises `SandboxDiedError` if the supervisor is gone too."""
        try:
            report = self._exit or wire.receive(self.supervisor, deadline=time.monotonic() + EXIT_REPORT_S)
        except wire.ClosedError:
            raise SandboxDiedError from None
        except wire.WireError:
            return ProcessExit(answers=False)
        code = report.meta.get("code")
        return ProcessExit(code if isinstance(code, int) else None, report.meta.get("excess", ""))

    def time_used(self) -> TimeUsed | None:
        """Report what the child and its descendants have used; None if that is not counted, or it has ended."""
        try:
            self.supervisor.send(b"u")
            report = wire.receive(self.supervisor, deadline=time.monotonic() + EXIT_REPORT_S)
        except (OSError, wire.WireError):
            return None
        if report.kind == "ended":
            self._exit = report
        return TimeUsed(report.meta["cpu_s"], report.meta["waited_s"]) if report.meta.get("cpu_s") is not None else None

    def kill(self) -> None:
        """Kill the child and its descendants; a pending `receive` sees the channel closed."""
        with contextlib.suppress(OSError):
            self.supervisor.shutdown(socket.SHUT_WR)  # the supervisor sees it, kills the child and exits

    def release(self) -> None:
        """Kill the child without waiting, and close its channel."""
        self.channel.close()
        self.kill()

    def close(self) -> None:
        """Kill the child and its descendants, and wait until they are dead."""
        self.release()
        with contextlib.suppress(OSError):
            self.supervisor.settimeout(KILL_S)
            while self.supervisor.recv(4096):
                pass
        self.supervisor.close()


class Launcher:
    """One process of `sandbox.inside.worker`, from start to end."""

    def __init__(self, lab: GradedLab, *, unsafe: bool, device: Device | None = None) -> None:
        self._lab, self._unsafe, self._ready = lab, unsafe, False
        # Kernels are compiled where speed is measured, and interpreted elsewhere so that they can be traced.
        self._traced = device is None and any(check.traced for check in lab.checks.checks)
        path = [*IMPORT_PATH, *filter(None, [lab.foreign_path])] if unsafe else [str(HOME)]
        command = [sys.executable, "-s", "-P", "-B", "-c", ENTRY.format(path=path)]
        if not unsafe:
            command = [*bubblewrap(lab, device=device), *command]
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._control, inner = socket.socketpair()
        with inner:
            self._process = subprocess.Popen(
                command,
                stdin=inner.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                env=make_environment(tempfile.gettempdir() if unsafe else SCRATCH),
            )

    def wait(self, spares: int) -> None:
        """Tell the launcher what to prepare, and wait until it is ready.

        Raises `CourseError` with its error message, and `SandboxDiedError` if it gave none.
        """
        if self._ready:
            return
        modules = list(self._lab.call_modules)
        start = {"modules": modules, "traced": self._traced, "jailed": not self._unsafe, "spares": spares}
        deadline = time.monotonic() + START_S
        try:
            wire.send(self._control, wire.Frame("start", start), deadline=deadline)
            wire.receive(self._control, deadline=deadline)
        except wire.WireError:
            self._process.kill()
            refusal = self._refusal()
            self.close()
            raise refusal or SandboxDiedError from None
        self._ready = True

    def acquire_job(self) -> Job:
        """Take a prestarted child. Raises `OSError` if the launcher does not answer."""
        self._control.settimeout(ACQUIRE_S)
        self._control.send(b"j")
        byte, descriptors, _, _ = socket.recv_fds(self._control, 1, 2)
        if not byte or len(descriptors) != 2:
            raise ConnectionResetError("the launcher is gone")
        return Job(channel=socket.socket(fileno=descriptors[0]), supervisor=socket.socket(fileno=descriptors[1]))

    def close(self) -> None:
        """End the process and everything that runs under it."""
        self._control.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def _refusal(self) -> CourseError | None:
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace").strip().splitlines()
        if not said:
            return None
        last = said[-1]
        if last.startswith("bwrap:"):
            return MissingToolError(
                "bubblewrap may not build a sandbox here",
                got=last,
                help="allow unprivileged user namespaces (on Ubuntu: an AppArmor profile for bwrap), or use --unsafe",
            )
        return CourseError("the sandbox did not start", got=last)
