"""Programs forked from a process that has their imports in it, where a new Python takes seconds to be ready."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
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
    """A running fork server; stands in for the module `subprocess` where that starts `python -c CODE ARGUMENTS`."""

    PIPE = subprocess.PIPE

    def __init__(self, imports: str, environment: dict[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="forks")
        self.address = f"{self._folder.name}/socket"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", str(SERVER), self.address, imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | (environment or {}),
        )
        assert self._process.stdout and self._process.stdout.readline() == b"ready\n"

    def Popen(self, command: list[str], **_: Any) -> Forked:
        """Fork what the command says, with pipes for text to and from it."""
        (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
        ends = [theirs_in, theirs_out, 2]
        forked = Forked(self.address, command, ends, folder=Path.cwd(), environment=dict(os.environ))
        os.close(theirs_in)
        os.close(theirs_out)
        forked.stdin, forked.stdout = os.fdopen(ours_in, "w"), os.fdopen(ours_out)
        return forked

    def close(self) -> None:
        """End the server; what it has forked goes on."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()
