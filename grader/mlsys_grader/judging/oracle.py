"""The judge's client of the trusted process: secret inputs, expected answers, comparison.

All of that is the course's own code, but the answers it compares come from a submission. It therefore runs in a process
of its own (`judging.trusted`), one child per submission, under limits that the kernel enforces.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from threading import Lock
from types import TracebackType
from typing import NoReturn, TypeVar

from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.judging.trusted import WALL_CLOCK_FACTOR
from mlsys_grader.paths import IMPORT_PATH
from mlsys_grader.sandbox.contents import make_environment
from mlsys_grader.sandbox.inside import wire
from mlsys_lab.errors import CourseError

T = TypeVar("T")
LIMIT_S = 10.0
"""CPU seconds for each step: drawing inputs, computing the expected answer, comparing."""
START_S = 180.0
ENTRY = f"import sys; sys.path[:0] = {IMPORT_PATH!r}; from mlsys_grader.judging.trusted import main; main()"


class CheckError(Exception):
    """A check's own code failed or timed out while drawing inputs or computing the expected answer."""


class AnswerTooLargeError(Exception):
    """The comparison of an answer timed out; `mismatch` says so."""

    def __init__(self, mismatch: Mismatch) -> None:
        super().__init__(mismatch.what)
        self.mismatch = mismatch


class _EndedError(Exception):
    """The child died, or timed out, while working on a request of kind `kind`."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def draw_seed(check: Check, public_seed: int) -> int:
    """Draw an unpredictable seed: 128 bits from the operating system, hashed with the public seed."""
    drawn = secrets.token_bytes(16)
    return int.from_bytes(hashlib.sha256(f"{check.name}/{public_seed}/".encode() + drawn).digest()[:8], "little")


class OracleServer:
    """The process that holds a lab's checks and forks a child for each submission. Use it as a context manager.

    It starts in the background. `open_child` is thread-safe, and restarts the process if it has died.
    """

    def __init__(self, lab: GradedLab) -> None:
        self._lab, self._lock, self._closed, self._ready = lab, Lock(), False, False
        self._start()

    def __enter__(self) -> OracleServer:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Kill the process and all its children."""
        self._closed = True
        self._end()

    def open_child(self) -> socket.socket:
        """Fork a child and return its channel. Raises `CourseError` if that keeps failing."""
        with self._lock:
            for _ in range(2):
                try:
                    return self._acquire_child()
                except (OSError, wire.WireError) as error:
                    if self._closed:
                        raise CourseError("the checks are closed") from None
                    said = str(error)
                    self._end()
                    self._start()
        raise CourseError("the process that decides keeps dying", got=said, help="is there enough memory?")

    def _acquire_child(self) -> socket.socket:
        if not self._ready:
            wire.receive(self._control, deadline=time.monotonic() + START_S)
            self._control.settimeout(START_S)
            self._ready = True
        self._control.send(b"c")
        byte, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        if not byte or len(descriptors) != 1:
            raise ConnectionResetError("the process that decides is gone")
        return socket.socket(fileno=descriptors[0])

    def _start(self) -> None:
        self._control, inner = socket.socketpair()
        with inner:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-B", "-c", ENTRY],
                stdin=inner.fileno(),
                stdout=subprocess.DEVNULL,
                env=make_environment(tempfile.gettempdir()),
                start_new_session=True,  # the judge handles Ctrl-C
            )
        path = [self._lab.foreign_path] if self._lab.foreign_path else []
        start = {"path": path, "checks": self._lab.info.checks_module, "limit_s": LIMIT_S}
        wire.send(self._control, wire.Frame("start", start))
        self._ready = False

    def _end(self) -> None:
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)  # its children die with it
        self._process.wait()


class Oracle:
    """Draw inputs, compute expected answers and compare, for one submission and concurrently with the sandbox.

    Each check uses its seed of `seeds`. An error in a check's own code raises `CheckError`. A step whose process dies
    is retried once in a fresh one. `busy_s` is the CPU time that comparisons took.
    """

    def __init__(self, oracles: OracleServer, seeds: Mapping[str, int], time_factor: float = 1.0) -> None:
        self.seeds, self.busy_s = seeds, 0.0
        self._oracles, self._limit_s = oracles, LIMIT_S * time_factor
        self._channel: socket.socket | None = None
        self._in_flight: deque[tuple[str, str, str]] = deque()  # (kind, check, case), oldest first
        self._replies: dict[tuple[str, str, str], wire.Frame] = {}
        self._drawn: set[tuple[str, str]] = set()  # (check, case) whose inputs this child has drawn

    def __enter__(self) -> Oracle:
        self._channel = self._oracles.open_child()  # before the submission's clock starts
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._close_child()

    def prefetch_inputs(self, check: Check, case: Case) -> None:
        """Start drawing the inputs of a case that is probably next."""
        self._send_ahead("draw", check, case)

    def inputs(self, check: Check, case: Case) -> Arrays:
        """Inputs of a case, without the private ones."""
        return self._retry_once(check, lambda: self._request("draw", check, case).arrays)

    def prefetch_expected(self, check: Check, case: Case) -> None:
        """Start computing the expected answer for the inputs drawn."""
        self._send_ahead("expect", check, case)

    def reply(self, check: Check, case: Case, what: str, value: int) -> wire.Frame:
        """Answer a query to a check's partner: a frame "reply", or "refused" with the reason.

        The partner's state dies with its process: the check itself has then failed, and `CheckError` is raised.
        """
        try:
            return self._request("query", check, case, what=what, value=value)
        except _EndedError:
            raise CheckError(f"check {check.name!r} itself failed: its partner's process has ended") from None

    def compare(self, check: Check, case: Case, got: Arrays) -> Mismatch | None:
        """Compare an answer with the expected one: None if accepted, else the mismatch.

        Raises `AnswerTooLargeError` if the comparison times out.
        """
        try:
            reply = self._retry_once(check, lambda: self._compare(check, case, got))
        except AnswerTooLargeError:
            self.busy_s += 2 * self._limit_s
            raise
        self.busy_s += reply.meta["cpu_s"]
        if reply.kind == "accepted":
            return None
        return Mismatch(reply.meta["what"], reply.meta["got"], reply.meta["expected"])

    def random_seed(self, check: Check, case: Case) -> int:
        """Seed for the submission's own random generators: reproducible in a replay, and reveals nothing of the secret
        seed.
        """
        text = f"{check.name}/{case.name}/{self.seeds[check.name]}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")

    def _compare(self, check: Check, case: Case, got: Arrays) -> wire.Frame:
        if (check.name, case.name) not in self._drawn:  # a child that has died drew them
            self._request("draw", check, case)
        self._request("expect", check, case)
        while self._in_flight:  # otherwise both sides could block on writing large frames
            self._receive()
        return self._request("compare", check, case, got)

    def _retry_once(self, check: Check, step: Callable[[], T]) -> T:
        """Run a step; retry once in a fresh child if the first died, since something else may have killed it."""
        with contextlib.suppress(_EndedError):
            return step()
        try:
            return step()
        except _EndedError as ended:
            limit = f"{self._limit_s:g} s of processor time"
            if ended.kind == "compare":
                late = Mismatch("its answer takes too long to compare", f"nothing after {limit}", f"less than {limit}")
                raise AnswerTooLargeError(late) from None
            what = "its inputs are not drawn" if ended.kind == "draw" else "its oracle has no answer"
            raise CheckError(f"check {check.name!r} itself failed: {what} within {limit}") from None

    def _request(
        self, kind: str, check: Check, case: Case, arrays: Arrays | None = None, **more: str | int
    ) -> wire.Frame:
        """Return the reply to a request, sending it unless it is in flight. Raises `CheckError` and `_EndedError`."""
        self._send(kind, check, case, arrays, **more)
        request = kind, check.name, case.name
        while request not in self._replies:
            self._receive()
        reply = self._replies.pop(request)
        if reply.kind == "fault":
            raise CheckError(f"check {check.name!r} itself failed: {reply.meta['what']}")
        return reply

    def _send_ahead(self, kind: str, check: Check, case: Case) -> None:
        """Send a request ahead; if the child has died, it is sent again when its reply is needed."""
        with contextlib.suppress(_EndedError):
            self._send(kind, check, case)

    def _send(self, kind: str, check: Check, case: Case, arrays: Arrays | None = None, **more: str | int) -> None:
        request = kind, check.name, case.name
        if request in self._in_flight or request in self._replies:
            return
        meta = {"check": check.name, "case": case.name, "seed": self.seeds[check.name], "limit_s": self._limit_s}
        try:
            if self._channel is None:
                self._channel = self._oracles.open_child()
            wire.send(self._channel, wire.Frame(kind, meta | more, arrays or {}), deadline=self._deadline())
        except wire.WireError:
            self._in_flight.append(request)
            self._raise_ended()
        self._in_flight.append(request)
        if kind == "draw":
            self._drawn.add((check.name, case.name))

    def _receive(self) -> None:
        assert self._channel is not None
        try:
            reply = wire.receive(self._channel, deadline=self._deadline())
        except wire.WireError:
            self._raise_ended()
        self._replies[self._in_flight.popleft()] = reply

    def _deadline(self) -> float:
        return time.monotonic() + WALL_CLOCK_FACTOR * self._limit_s

    def _raise_ended(self) -> NoReturn:
        kind = self._in_flight[0][0]
        self._close_child()
        raise _EndedError(kind) from None

    def _close_child(self) -> None:
        """Drop the child; it ends by itself, at its CPU limit at the latest."""
        if self._channel is not None:
            self._channel.close()
        self._channel = None
        self._in_flight.clear()
        self._replies.clear()
        self._drawn.clear()
