"""Bubblewrap around the launcher of submissions (`grader.worker`), and jobs in it.

Inside: no network; a read-only root that holds the system's libraries, Python, its environment and the course
package, without the modules that the lab asks learners to write; nothing of the course folder, of other submissions,
of the home folder. Each job then runs in namespaces of its own (`grader.jail`).
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

import mlsys_lab
from grader import wire
from grader.bubblewrap import HOME, bubblewrap, environment
from grader.jail import SCRATCH
from grader.labs import GradedLab
from mlsys_lab.errors import CourseError, MissingToolError

START_S = 180.0
ENTRY = "import sys; sys.path[:0] = {path!r}; from grader.worker import main; main()"
UNSAFE = "--unsafe: submissions run with your rights: they can read your files, use the network and change this machine"


@dataclass
class Job:
    """One child that answers cases over `channel`; `ending()` tells how it ended once the channel is closed."""

    channel: socket.socket
    life: socket.socket

    def ending(self) -> str:
        """How a child that left without an answer ended, in words."""
        try:
            code = wire.receive(self.life, deadline=time.monotonic() + 2.0).meta.get("code")
        except wire.WireError:
            return "its process is gone"
        if not isinstance(code, int):
            return "its process is gone"
        return (
            f"its process was killed by signal {-code}" if code < 0 else f"its process ended itself with status {code}"
        )


class Sandbox:
    """A running launcher for one lab; use it as a context manager. Jobs may be opened from several threads.

    Raises `MissingToolError` where bubblewrap is missing or not allowed; `unsafe=True` does without it.
    """

    def __init__(self, lab: GradedLab, *, unsafe: bool = False) -> None:
        self.lab = lab
        package = Path(str(mlsys_lab.__file__)).parent
        path = [str(package.parent if unsafe else HOME)]
        extra = [lab.foreign_path] if lab.foreign_path else []
        command = [sys.executable, "-s", "-P", "-B", "-c", ENTRY.format(path=path)]
        if not unsafe:
            command = [*bubblewrap(package, lab, extra), *command]
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._control, inner = socket.socketpair()
        with inner:
            self._process = subprocess.Popen(
                command,
                stdin=inner.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                env=environment(tempfile.gettempdir() if unsafe else SCRATCH),
            )
        deadline = time.monotonic() + START_S
        try:
            start = {"checks": lab.info.checks_module, "path": extra, "jailed": not unsafe}
            wire.send(self._control, wire.Frame("start", start), deadline=deadline)
            wire.receive(self._control, deadline=deadline)
        except wire.WireError:
            self._process.kill()
            refusal = self._refusal()
            self.close()
            raise refusal from None
        self._control.settimeout(None)

    def close(self) -> None:
        """End the launcher and all that runs under it."""
        self._control.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    @contextmanager
    def job(self) -> Iterator[Job]:
        """Open a child for one check; at the end of the block it is dead, with all that it started."""
        channel, inner_channel = socket.socketpair()
        life, inner_life = socket.socketpair()
        try:
            socket.send_fds(self._control, [b"j"], [inner_channel.fileno(), inner_life.fileno()])
        except OSError:
            channel.close()
            life.close()
            raise CourseError(
                "the sandbox has died", help="start `mlsys-grader grade` again: it goes on where it stood"
            ) from None
        finally:
            inner_channel.close()
            inner_life.close()
        try:
            yield Job(channel, life)
        finally:
            channel.close()
            with contextlib.suppress(OSError):
                life.shutdown(socket.SHUT_WR)  # the attendant sees it, kills the child and leaves
                life.settimeout(5.0)
                while life.recv(4096):
                    pass
            life.close()

    def _refusal(self) -> CourseError:
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace").strip().splitlines()
        last = said[-1] if said else "no message"
        if last.startswith("bwrap:"):
            return MissingToolError(
                "bubblewrap may not build a sandbox here",
                got=last,
                help="allow unprivileged user namespaces (on Ubuntu: an AppArmor profile for bwrap), or use --unsafe",
            )
        return CourseError("the sandbox did not start", got=last)
