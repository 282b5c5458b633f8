"""The process that submissions run in: a launcher that imports torch once, and forks a jailed child for every check.

    judge ── control ──▶ launcher          imports the lab's checks, runs no learner's code, ever
              job: two sockets ──▶ attendant     a fork that waits: kills the child when the judge lets go, tells its
              end
                                      └─▶ child      a fork in namespaces of its own: loads the artifact, answers cases

The child decides nothing: arrays come in, the learner's code is called, arrays or a description of the trouble go out.
Runs inside bubblewrap as `python -c "from grader.worker import main; main()"` with the control socket as standard
input.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import select
import signal
import socket
import sys
from dataclasses import replace
from typing import Any, NoReturn

from grader import jail, wire
from mlsys_lab.checks.attempt import Attempt, attempt
from mlsys_lab.checks.limits import OutOfTimeError, time_limit
from mlsys_lab.checks.spec import Check, Lab, Mismatch
from mlsys_lab.errors import CourseError, UnfinishedError
from mlsys_lab.stack.artifact import Artifact, load

POLL_S = 0.01
FILE_BYTES = 16 << 20
PROCESSES = 256
OUT_OF_MEMORY = ("MemoryError", "can't allocate memory")
"""How NumPy and torch say that the kernel refused them memory."""
TEXT = 2000
"""Longest text about a failure that is worth sending, in characters."""


def main() -> NoReturn:
    """Serve jobs until the judge closes the control socket."""
    control = socket.socket(fileno=os.dup(0))
    _standard_streams_to_null()
    start = wire.receive(control).meta
    sys.path[:0] = start["path"]
    lab = _prepare(start["checks"])
    wire.send(control, wire.Frame("ready"))
    control.settimeout(None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # attendants are reaped by the kernel
    while True:
        byte, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not byte:
            os._exit(0)
        channel, life = (socket.socket(fileno=fd) for fd in descriptors)
        if os.fork() == 0:
            control.close()
            try:
                _attend(lab, channel, life, jailed=start["jailed"])
            finally:  # whatever happened, a fork never goes on as a second launcher
                os._exit(1)
        channel.close()
        life.close()


def _prepare(checks: str) -> Lab:
    """Import the lab's checks and what they lean on; one thread, because threads do not survive a fork."""
    import torch

    torch.set_num_threads(1)
    lab: Lab = importlib.import_module(checks).LAB
    return lab


def _standard_streams_to_null() -> None:
    """What a submission prints goes nowhere; the launcher's own trouble goes to its standard error until here."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    os.close(null)


def _attend(lab: Lab, channel: socket.socket, life: socket.socket, *, jailed: bool) -> None:
    """Fork the child and wait for its end or the judge's; whoever is left then is killed."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if jailed:
        jail.unshare()
    pid = os.fork()
    if pid == 0:
        life.close()
        _run_child(lab, channel, jailed=jailed)
    channel.close()
    ended = 0
    while not ended:
        if select.select([life], [], [], POLL_S)[0]:
            _kill(pid, jailed=jailed)
            os.waitpid(pid, 0)
            return
        ended, status = os.waitpid(pid, os.WNOHANG)
    _kill(pid, jailed=jailed)
    with contextlib.suppress(wire.WireError):
        wire.send(life, wire.Frame("ended", {"code": os.waitstatus_to_exitcode(status)}))


def _kill(pid: int, *, jailed: bool) -> None:
    """In the jail the child is process 1 of its namespace and takes all it started along; outside it leads a group."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL) if jailed else os.killpg(pid, signal.SIGKILL)


def _run_child(lab: Lab, channel: socket.socket, *, jailed: bool) -> NoReturn:
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 2)
        os.closerange(3, channel.fileno())
        os.closerange(channel.fileno() + 1, 4096)
        job = wire.receive(channel).meta
        check = lab[job["check"]]
        check = replace(check, time_limit_s=check.time_limit_s * job["time_factor"])
        artifact = Artifact.parse(job["name"], job["source"])
        _import_ahead(job["source"])
        already = jail.data_bytes() if jailed else 0
        if jailed:
            jail.furnish()
            os.chdir(jail.SCRATCH)
            jail.drop_privileges()
        else:
            os.setsid()
        # CPU time is the kernel's own word on an endless loop, in case nobody is left to kill by the clock.
        seconds = check.time_limit_s * (len(check.cases) + 1)
        jail.limit(cpu_s=int(seconds) + 5, file_bytes=FILE_BYTES, processes=PROCESSES)
        if jailed:
            jail.cap_memory(job["memory_bytes"], already)
        _answer(check, artifact, channel)
    except BaseException as error:
        with contextlib.suppress(BaseException):
            wire.send(channel, wire.Frame("broken", {"what": f"{type(error).__name__}: {error}"[:TEXT]}))
    os._exit(0)


def _import_ahead(source: str) -> None:
    """Import installed modules that the artifact imports, so that their memory does not count against its budget."""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        for node in ast.walk(ast.parse(source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)


def _answer(check: Check, artifact: Artifact, channel: socket.socket) -> None:
    """Load the artifact, then answer one case after the other until the judge closes the channel."""
    module, problem, unfinished = _load(check, artifact)
    if problem is not None:
        return wire.send(channel, _told("not loaded", problem, unfinished))
    wire.send(channel, wire.Frame("loaded"))
    while True:
        try:
            case = wire.receive(channel)
        except wire.ClosedError:
            return
        wire.send(channel, _frame(attempt(check, module, case.arrays)))


def _load(check: Check, artifact: Artifact) -> tuple[Any, Mismatch | None, bool]:
    try:
        with time_limit(check.time_limit_s):
            return load(artifact), None, False
    except OutOfTimeError:
        limit = f"{check.time_limit_s:g} s"
        return None, Mismatch("the exported cells do not come to an end", f"nothing after {limit}", "a module"), False
    except CourseError as error:
        got, expected = str(error.got or ""), str(error.expected or error.help)
        return None, Mismatch(error.what, got, expected), isinstance(error, UnfinishedError)


def _frame(outcome: Attempt) -> wire.Frame:
    if outcome.arrays is not None:
        return wire.Frame("answer", arrays=outcome.arrays)
    assert outcome.problem is not None
    problem = outcome.problem
    if any(sign in problem.got for sign in OUT_OF_MEMORY):
        problem = Mismatch("it needs too much memory", "a request for more that was refused", problem.expected)
    return _told("trouble", problem, outcome.unfinished)


def _told(kind: str, problem: Mismatch, unfinished: bool) -> wire.Frame:
    return wire.Frame(
        kind,
        {
            "what": problem.what[:TEXT],
            "got": problem.got[:TEXT],
            "expected": problem.expected[:TEXT],
            "unfinished": unfinished,
        },
    )
