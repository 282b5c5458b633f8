"""The trusted side of a lab's checks, as the judge asks it: secret inputs, what is expected for them, the comparison.

All of it is the course's own code, but what it compares comes from a submission: it runs in a process of its own
(`judging.trusted`), one child for each submission, under limits that the kernel keeps.
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
"""Processor seconds for each step: to draw inputs, to compute what is expected, to compare an answer."""
START_S = 180.0
ENTRY = f"import sys; sys.path[:0] = {IMPORT_PATH!r}; from mlsys_grader.judging.trusted import main; main()"


class CheckError(Exception):
    """A check's own code failed, or came to no end, while it drew inputs or computed what is expected."""


class AnswerTooLargeError(Exception):
    """An answer on which the comparison came to no end; `mismatch` says so."""

    def __init__(self, mismatch: Mismatch) -> None:
        super().__init__(mismatch.what)
        self.mismatch = mismatch


class _EndedError(Exception):
    """The child ended, or gave no answer, while it was at work on a question of kind `kind`."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def draw_seed(check: Check, public_seed: int) -> int:
    """Draw a seed that nobody can foresee: 128 bits from the operating system, hashed with the public seed."""
    drawn = secrets.token_bytes(16)
    return int.from_bytes(hashlib.sha256(f"{check.name}/{public_seed}/".encode() + drawn).digest()[:8], "little")


class OracleServer:
    """The process that knows a lab's checks and forks a child for each submission; a `with` block holds it.

    It starts beside whatever comes next. `open_child` may be called from several threads, and starts a new process
    where that has died.
    """

    def __init__(self, lab: GradedLab) -> None:
        self._lab, self._lock, self._closed, self._ready = lab, Lock(), False, False
        self._start()

    def __enter__(self) -> OracleServer:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process and all its children, whatever they are at."""
        self._closed = True
        self._end()

    def open_child(self) -> socket.socket:
        """Open the channel of a new child. Raises `CourseError` when none can be had."""
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
                start_new_session=True,  # Ctrl-C is the judge's to deal with
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
    """Draws inputs, computes what is expected and compares, for one submission, beside the sandbox at work.

    It answers for every check with the seed given for it; what is wrong with a check itself comes out as `CheckError`. A
    step that ends its process is tried once more in a fresh one. `busy_s` are the processor seconds that comparisons
    took.
    """

    def __init__(self, oracles: OracleServer, seeds: Mapping[str, int], time_factor: float = 1.0) -> None:
        self.seeds, self.busy_s = seeds, 0.0
        self._oracles, self._limit_s = oracles, LIMIT_S * time_factor
        self._channel: socket.socket | None = None
        self._in_flight: deque[tuple[str, str, str]] = deque()  # kind, check, case: what is on its way, in order
        self._replies: dict[tuple[str, str, str], wire.Frame] = {}
        self._drawn: set[tuple[str, str]] = set()  # check, case: what this child was asked to draw

    def __enter__(self) -> Oracle:
        self._channel = self._oracles.open_child()  # now, and not while a submission's time is running
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._close_child()

    def prefetch_inputs(self, check: Check, case: Case) -> None:
        """Begin to draw the inputs of a case that will probably be next."""
        self._send_ahead("draw", check, case)

    def inputs(self, check: Check, case: Case) -> Arrays:
        """Inputs of a case, without those that never leave the trusted side."""
        return self._retry_once(check, lambda: self._request("draw", check, case).arrays)

    def prefetch_expected(self, check: Check, case: Case) -> None:
        """Begin to compute what is expected for the inputs that were drawn."""
        self._send_ahead("expect", check, case)

    def reply(self, check: Check, case: Case, what: str, value: int) -> wire.Frame:
        """What the partner of a check says to a question: a frame "reply", or "refused" with the reason.

        What it was told before is lost with its process: then the check itself has failed, which raises `CheckError`.
        """
        try:
            return self._request("query", check, case, what=what, value=value)
        except _EndedError:
            raise CheckError(f"check {check.name!r} itself failed: its partner's process has ended") from None

    def compare(self, check: Check, case: Case, got: Arrays) -> Mismatch | None:
        """Compare an answer with what was expected: None when it is accepted, else what is wrong with it.

        Raises `AnswerTooLargeError` when that comes to no end.
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
        """What the submission's own random numbers start from: the same in a replay, no way back to the secret seed."""
        text = f"{check.name}/{case.name}/{self.seeds[check.name]}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")

    def _compare(self, check: Check, case: Case, got: Arrays) -> wire.Frame:
        if (check.name, case.name) not in self._drawn:  # by a child that has ended
            self._request("draw", check, case)
        self._request("expect", check, case)
        while self._in_flight:  # or both sides could wait for each other to read what is large
            self._receive()
        return self._request("compare", check, case, got)

    def _retry_once(self, check: Check, step: Callable[[], T]) -> T:
        """Take a step; once more in a fresh child where the first has ended: somebody else may have killed it."""
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
        """The reply to a question, which is put unless it is on its way. Raises `CheckError` and `_EndedError`."""
        self._send(kind, check, case, arrays, **more)
        request = kind, check.name, case.name
        while request not in self._replies:
            self._receive()
        reply = self._replies.pop(request)
        if reply.kind == "fault":
            raise CheckError(f"check {check.name!r} itself failed: {reply.meta['what']}")
        return reply

    def _send_ahead(self, kind: str, check: Check, case: Case) -> None:
        """Put a question ahead; where the child has ended it is put again when its answer is wanted."""
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
        """Let the child go; it ends by itself, at the latest at its limit."""
        if self._channel is not None:
            self._channel.close()
        self._channel = None
        self._in_flight.clear()
        self._replies.clear()
        self._drawn.clear()
