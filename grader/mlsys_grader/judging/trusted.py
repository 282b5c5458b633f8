"""The trusted process: draws inputs, computes expected answers and compares, in a child for each submission.

    judge ── control ──▶ launcher     imports the checks and their oracles; never sees an answer
                            └─▶ child  serves one submission under its own limits

Answers are hostile: they may make the comparison loop or allocate memory without end, in C code that no signal handler
interrupts. The kernel's limits still hold there, and all that a submission's child took dies with it. Runs as `python
-c "from mlsys_grader.judging.trusted import main; main()"` with the control socket as standard input.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from math import ceil
from typing import Any, NoReturn

from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Lab, Mismatch, Query
from mlsys_checks.trusted.verdict import draw_inputs, public_inputs
from mlsys_grader.sandbox.inside import jail, wire
from mlsys_lab.errors import InputError
from mlsys_lab.stack.limits import OutOfTimeError, time_limit

MEMORY_BYTES = 2 << 30
"""Memory that inputs, oracle and comparison may map in addition to the launcher's."""
WALL_CLOCK_FACTOR = 20.0
"""Wall-clock limit of a step as a multiple of its CPU limit: the machine may be busy."""
MAX_CHARACTERS = 2000
"""Longest text about a failure that is worth sending, in characters."""


def main() -> NoReturn:
    """Fork a child per request until the judge closes the control socket."""
    control = socket.socket(fileno=os.dup(0))
    start = wire.receive(control).meta
    sys.path[:0] = start["path"]
    lab: Lab = importlib.import_module(start["checks"]).LAB
    warm_up(lab, start["limit_s"])
    gc.collect()
    gc.freeze()  # otherwise garbage collection in a child would touch all of torch
    wire.send(control, wire.Frame("ready"))
    control.settimeout(None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    while control.recv(1):
        channel, inner = socket.socketpair()
        if os.fork() == 0:
            try:
                control.close()
                channel.close()
                _serve_child(inner, lab)
            finally:  # a fork must never continue as a second launcher
                os._exit(1)
        socket.send_fds(control, [b"c"], [channel.fileno()])
        channel.close()
        inner.close()
    os._exit(0)


def warm_up(lab: Lab, limit_s: float) -> None:
    """Run the oracle on the first case of each check, because oracles import slowly at their first use.

    Skips checks with a memory budget, whose arrays are large. Errors and timeouts are ignored here and reported when
    the check runs.
    """
    import torch

    torch.set_num_threads(1)  # threads do not survive a fork
    for check in lab.checks:
        if check.memory_bytes is None:
            with contextlib.suppress(Exception, OutOfTimeError), time_limit(limit_s, WALL_CLOCK_FACTOR):
                check.expect(draw_inputs(check, check.cases[0], seed=0))


def _serve_child(channel: socket.socket, lab: Lab) -> NoReturn:
    """Serve one submission in a child: memory-limited, and killed with the launcher."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(jail.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with jail.open_status() as status:
            jail.limit_memory(MEMORY_BYTES, jail.read_data_bytes(status))
    with contextlib.suppress(wire.WireError):
        CheckServer(lab).serve(channel)
    os._exit(0)


class CheckServer:
    """Serve the judge's requests about cases of one lab; inputs and expected answers stay here."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._inputs: dict[tuple[str, str], Arrays] = {}
        self._expected: dict[tuple[str, str], Arrays] = {}
        self._partners: dict[tuple[str, str], Query] = {}
        self._kinds: dict[str, Callable[[Check, Case, wire.Frame], wire.Frame]] = {
            "draw": self._draw,
            "expect": self._expect,
            "query": self._query,
            "compare": self._compare,
        }

    def serve(self, channel: socket.socket) -> NoReturn:
        """Serve requests, each within its CPU limit, and report the CPU time. Raises `wire.WireError` at the end."""
        while True:
            request = wire.receive(channel)
            extend_cpu_limit(request.meta["limit_s"])
            start = time.process_time()
            reply = self.handle(request)
            cpu_s = time.process_time() - start
            wire.send(channel, wire.Frame(reply.kind, {**reply.meta, "cpu_s": cpu_s}, reply.arrays))

    def handle(self, request: wire.Frame) -> wire.Frame:
        """Handle one request: a reply, or "fault" if the check's own code raises."""
        check = self._lab[request.meta["check"]]
        (case,) = (case for case in check.cases if case.name == request.meta["case"])
        try:
            return self._kinds[request.kind](check, case, request)
        except Exception as error:
            return wire.Frame("fault", {"what": f"{type(error).__name__}: {error}"[:MAX_CHARACTERS]})

    def _draw(self, check: Check, case: Case, request: wire.Frame) -> wire.Frame:
        inputs = draw_inputs(check, case, request.meta["seed"])
        self._inputs[check.name, case.name] = inputs
        if check.partner is not None:
            self._partners[check.name, case.name] = check.partner(inputs)
        return wire.Frame("inputs", arrays=public_inputs(inputs))

    def _expect(self, check: Check, case: Case, request: wire.Frame) -> wire.Frame:
        key = check.name, case.name
        self._expected[key] = check.expect(self._inputs.pop(key))
        return wire.Frame("expected")

    def _query(self, check: Check, case: Case, request: wire.Frame) -> wire.Frame:
        try:
            value = self._partners[check.name, case.name](request.meta["what"], request.meta["value"])
        except InputError as error:
            return wire.Frame(
                "refused", _as_text(Mismatch(error.what, str(error.got or ""), str(error.expected or "")))
            )
        return wire.Frame("reply", {"value": value})

    def _compare(self, check: Check, case: Case, request: wire.Frame) -> wire.Frame:
        mismatch = compare(check, request.arrays, self._expected.pop((check.name, case.name)))
        return wire.Frame("accepted") if mismatch is None else wire.Frame("mismatch", _as_text(mismatch))


def compare(check: Check, got: Arrays, expected: Arrays) -> Mismatch | None:
    """Compare an answer. An exception means arrays that no honest `run` returns: not accepted."""
    try:
        return check.compare(got, expected)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return Mismatch("the answer cannot be compared", said, "the arrays that the check asks for")


def extend_cpu_limit(limit_s: float) -> None:
    """Extend this process's CPU limit by `limit_s`, rounded up to seconds; the kernel then kills it (SIGXCPU)."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = ceil(time.process_time() + limit_s)
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _as_text(mismatch: Mismatch) -> dict[str, Any]:
    fields = {"what": mismatch.what, "got": mismatch.got, "expected": mismatch.expected}
    return {name: text[:MAX_CHARACTERS] for name, text in fields.items()}
