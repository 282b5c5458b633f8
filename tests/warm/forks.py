"""Programs forked from a process that has their imports in it, where a new Python takes seconds to be ready."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import IO, Any

SERVER = Path(__file__).with_name("fork_server.py")


class Forked:
    """A process that the fork server at `address` made for `python -c CODE ARGUMENTS`, in a session of its own.

    It is as much of a `subprocess.Popen` as is used here; other options of Python in the command are without effect.
    """

    def __init__(
        self, address: str, command: list[str], descriptors: list[int], *, folder: Path, environment: dict[str, str]
    ) -> None:
        code, *arguments = command[command.index("-c") + 1 :]
        order = {"code": code, "arguments": arguments, "folder": str(folder), "environment": environment}
        said = json.dumps(order).encode() + b"\n"
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            connection.sendall(said[socket.send_fds(connection, [said], descriptors) :])
            self._told = connection.makefile()
        self.pid = int(self._told.readline())
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None

    def wait(self) -> int:
        """Wait for its end; the status or, negative, the signal that it ended by."""
        with self._told:
            return int(self._told.readline())


class ForkServer:
    """A fork server, started when it is first wanted; stands in for `subprocess` where that starts `python -c CODE`."""

    PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL

    def __init__(self, imports: str, environment: dict[str, str] | None = None) -> None:
        self._imports, self._environment = imports, os.environ | (environment or {})
        self._stack = ExitStack()

    @cached_property
    def address(self) -> str:
        """The socket that it listens at."""
        address = f"{self._stack.enter_context(tempfile.TemporaryDirectory(prefix='forks'))}/socket"
        command = [sys.executable, "-P", "-W", "ignore", str(SERVER), address, self._imports]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = self._stack.enter_context(subprocess.Popen(command, **pipes, env=self._environment))
        assert process.stdout and process.stdout.readline() == b"ready\n"
        return address

    def Popen(self, command: list[str], *, stdin: int = PIPE, env: dict[str, str] | None = None, **_: Any) -> Forked:
        """Fork what the command says: with pipes for text to and from it, or a descriptor for its standard input."""
        if stdin != self.PIPE:
            return Forked(self.address, command, [stdin, 2, 2], folder=Path.cwd(), environment=env or dict(os.environ))
        (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
        ends = [theirs_in, theirs_out, 2]
        forked = Forked(self.address, command, ends, folder=Path.cwd(), environment=dict(os.environ))
        os.close(theirs_in)
        os.close(theirs_out)
        forked.stdin, forked.stdout = os.fdopen(ours_in, "w"), os.fdopen(ours_out)
        return forked

    def close(self) -> None:
        """End the server; what it has forked goes on."""
        self._stack.close()
