"""Bubblewrap around the launcher of submissions (`grader.worker`), and jobs in it.

Inside: no network; a read-only root that holds the system's libraries, Python, its environment and the course
package, without the modules that the lab asks learners to write; nothing of the course folder, of other submissions,
of the home folder. Each job then runs in namespaces of its own (`grader.jail`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
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
from grader.jail import SCRATCH
from grader.labs import GradedLab
from mlsys_lab.errors import CourseError, InputError, MissingToolError

START_S = 180.0
HOME = Path("/course")
"""Where the course package lies inside the sandbox."""
GRADER_MODULES = ("__init__.py", "wire.py", "jail.py", "worker.py")
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
            command = [*_bubblewrap(package, lab, extra), *command]
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._control, inner = socket.socketpair()
        with inner:
            self._process = subprocess.Popen(
                command,
                stdin=inner.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                env=_environment(tempfile.gettempdir() if unsafe else SCRATCH),
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


def _environment(scratch: str) -> dict[str, str]:
    """Nothing of the instructor's environment reaches a submission."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": scratch,
        "TMPDIR": scratch,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        **one_thread,
    }


def _bubblewrap(package: Path, lab: GradedLab, extra: list[str]) -> list[str]:
    program = shutil.which("bwrap")
    if program is None:
        raise MissingToolError(
            "bubblewrap is not installed, and submissions are not run without a sandbox",
            help="`apt install bubblewrap`, or --unsafe to run them with your own rights",
        )
    command = [program, "--die-with-parent", "--new-session", "--hostname", "lab", "--unshare-uts"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-cgroup-try"]
    if os.geteuid() != 0:
        command += ["--unshare-user", "--uid", "0", "--gid", "0"]
    command += ["--cap-drop", "ALL"]
    for capability in ("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL"):  # for grader.jail
        command += ["--cap-add", capability]
    for folder in ("/usr", "/lib", "/lib64", "/bin"):
        if Path(folder).is_symlink():
            command += ["--symlink", str(Path(folder).readlink()), folder]
        elif Path(folder).is_dir():
            command += ["--ro-bind", folder, folder]
    command += ["--proc", "/proc", "--dev", "/dev", "--dir", SCRATCH]
    prefixes = [
        prefix for prefix in dict.fromkeys((sys.base_prefix, sys.prefix)) if not Path(prefix).is_relative_to("/usr")
    ]
    own = Path(__file__).parent
    binds = [(folder, folder) for folder in ("/etc/ld.so.cache", *prefixes, *extra) if Path(folder).exists()]
    binds.append((str(package), str(HOME / "mlsys_lab")))
    binds += [(str(own / name), str(HOME / "grader" / name)) for name in GRADER_MODULES]
    # bubblewrap would make missing parents readable by root only.
    parents = {parent for _, target in binds for parent in Path(target).parents if parent != Path("/")}
    for folder in sorted(map(str, parents)):
        command += ["--dir", folder]
    if Path("/tmp") not in parents:
        command += ["--symlink", SCRATCH, "/tmp"]  # for code that asks for no other folder
    for source, target in binds:
        command += ["--ro-bind", source, target]
    command += _covers(package, lab)
    return [*command, "--remount-ro", "/", "--chdir", "/"]


def _covers(package: Path, lab: GradedLab) -> list[str]:
    """Hide the withheld modules; and the whole package where it lies in the environment itself, since HOME has it."""
    command: list[str] = []
    for module in lab.info.withheld:
        inside = Path(*module.split(".")[1:])
        if (package / inside).is_dir():
            command += ["--tmpfs", str(HOME / "mlsys_lab" / inside)]
        elif (package / inside.with_suffix(".py")).is_file():
            command += ["--ro-bind", "/dev/null", str(HOME / "mlsys_lab" / inside.with_suffix(".py"))]
        else:
            raise InputError(f"lab.toml of {lab.name} withholds a module that there is not", got=module)
    if package.is_relative_to(sys.prefix):
        command += ["--tmpfs", str(package), "--tmpfs", str(Path(__file__).parent)]
    return command
