"""Backend "threads": one rank runs at a time, so the same program and inputs always give the same run.

A rank keeps the baton until it has to wait, and then passes it to the next rank, in cyclic order, that can continue. If
no rank can, the program is deadlocked, and the error says exactly which rank waits for which.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mlsys_lab.comm.errors import DeadlockError, MessageError, RankError, RankTimeoutError
from mlsys_lab.comm.ledger import Finish, Link, Log, Post
from mlsys_lab.comm.rank import Endpoint, Rank, Request, Snapshot, check_received
from mlsys_lab.comm.seeds import initial_random_state, preserve_random_state, random_state, set_random_state
from mlsys_lab.errors import CourseError, UnfinishedError

POLL_S = 0.05
WALL_FACTOR = 10  # a rank that sleeps uses no CPU time: its wall-clock limit is the CPU limit times this
GRACE_S = 3.0  # for threads to end after they have been stopped
RETRY_S = 0.5  # a thread that runs on for this long has lost the exception raised in it


class _Stopped(BaseException):
    """Raised in threads of ranks that must end because the run is over; not an Exception, so programs let it pass."""


def run_threads(function: Callable[..., Any], inputs: Sequence[Any], limit_s: float) -> tuple[list[Any], list[Log]]:
    """Run `function(rank, input)` on a thread for each input; returns results and logs. See `mlsys_lab.comm.run`."""
    world = _World(len(inputs))
    threads = [
        threading.Thread(target=world.run_rank, args=(function, rank, given), daemon=True, name=f"rank {rank}")
        for rank, given in enumerate(inputs)
    ]
    with preserve_random_state():
        for thread in threads:
            thread.start()
        try:
            world.begin()
            world.watch(threads, limit_s)
        finally:
            world.stop(threads)
            world.closed = True
    world.raise_failure()
    return world.results, world.logs


class _World:
    """State shared by all ranks: the baton's holder, posts, what each rank waits for, and the first failure."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.logs: list[Log] = [[] for _ in range(size)]
        self.posts = [0] * size
        self.results: list[Any] = [None] * size
        self.failure: CourseError | None = None
        self.cause: BaseException | None = None
        self.turns = [threading.Semaphore(0) for _ in range(size)]
        self.holder = 0
        self.waiting: list[_ThreadRequest | None] = [None] * size
        self.ended = [False] * size
        self.over = threading.Event()
        self.closed = False
        self.unmatched: dict[tuple[Link, str], deque[_ThreadRequest]] = defaultdict(deque)
        self.states = [initial_random_state(rank) for rank in range(size)]

    # --- the baton ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.turns[0].release()

    def run_rank(self, function: Callable[..., Any], rank: int, given: Any) -> None:
        """Body of a rank's thread: wait for the baton, run the program, and pass the baton on."""
        try:
            self._await_baton(rank)
            self.results[rank] = function(Rank(_ThreadEndpoint(self, rank)), given)
        except _Stopped:
            return
        except MessageError as problem:
            self.fail(problem)
            return
        except NotImplementedError as problem:  # a lab task that is not written yet: its name is the message
            self.fail(UnfinishedError(str(problem)), problem)
            return
        except BaseException as problem:
            self.fail(RankError.from_exception(rank, problem), problem)
            return
        self.ended[rank] = True
        self._pass_baton(rank)

    def block(self, request: _ThreadRequest) -> None:
        """Pass the baton on until a request is matched."""
        if not request.matched:
            self.waiting[request.rank] = request
            self._pass_baton(request.rank)
            self._await_baton(request.rank)
            self.waiting[request.rank] = None

    def _await_baton(self, rank: int) -> None:
        self.turns[rank].acquire()
        if self.over.is_set():
            raise _Stopped
        self.holder = rank
        set_random_state(self.states[rank])

    def _pass_baton(self, rank: int) -> None:
        self.states[rank] = random_state()
        for step in range(1, self.size + 1):
            candidate = (rank + step) % self.size
            request = self.waiting[candidate]
            if not self.ended[candidate] and (request is None or request.matched):
                self.turns[candidate].release()
                return
        if not all(self.ended):
            self.fail(DeadlockError("; ".join(self._describe(rank) for rank in range(self.size))))
        else:
            self.over.set()

    def _describe(self, rank: int) -> str:
        request = self.waiting[rank]
        return f"rank {rank} has ended" if self.ended[rank] or request is None else request.post.describe(rank)

    def fail(self, failure: CourseError, cause: BaseException | None = None) -> None:
        """End the run with this failure, unless an earlier one has caused it."""
        if self.failure is None:
            self.failure, self.cause = failure, cause
        self.over.set()

    # --- messages -----------------------------------------------------------------------------------------------------

    def match(self, request: _ThreadRequest) -> None:
        """Match a request with the earliest one of the other side, or queue it."""
        link, kind = request.post.link(request.rank), request.post.kind
        queue = self.unmatched[link, "recv" if kind == "send" else "send"]
        if not queue:
            self.unmatched[link, kind].append(request)
            return
        other = queue.popleft()
        send, receive = (request, other) if kind == "send" else (other, request)
        send.matched = receive.matched = True
        assert send.snapshot is not None
        receive.received = send.snapshot.copy.clone()

    # --- the main thread's side ---------------------------------------------------------------------------------------

    def watch(self, threads: Sequence[threading.Thread], limit_s: float) -> None:
        """Wait for the end of the run; fail it if the baton's holder computes for longer than the limit."""
        holder, cpu_s, since = -1, 0.0, time.monotonic()
        while not self.over.wait(POLL_S):
            now_cpu_s = _cpu_s(threads[self.holder])
            if self.holder != holder:
                holder, cpu_s, since = self.holder, now_cpu_s, time.monotonic()
            elif now_cpu_s - cpu_s > limit_s or time.monotonic() - since > WALL_FACTOR * limit_s:
                what = f"rank {holder} has run for {limit_s:g} s without a message: does it loop?"
                self.fail(RankTimeoutError(what, holder))

    def stop(self, threads: Sequence[threading.Thread]) -> None:
        """End all threads: those that wait, at once, and one that runs, at its next line of Python."""
        self.over.set()
        for turn in self.turns:
            turn.release()
        # An exception raised in a thread may hit a finaliser, where it is ignored but printed. A builtin as the hook
        # prints nothing and cannot be interrupted itself; the exception is raised again anyway.
        hook, sys.unraisablehook = sys.unraisablehook, id
        try:
            self._join(threads)
        finally:
            sys.unraisablehook = hook
        if running := [rank for rank, thread in enumerate(threads) if thread.is_alive()]:
            self.failure = RankError(f"{self.failure}; its thread cannot be stopped: restart the kernel", running[0])

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        """Wait for the threads for a limited time, raising _Stopped in the one that is running; waiting ones end alone.

        The exception is lost in a finaliser or a bare `except`, so a thread that keeps running gets another one, but
        not at once: it would hit the code that handles the first.
        """
        start = time.monotonic()
        due = [start if rank == self.holder else start + RETRY_S for rank in range(self.size)]
        while any(thread.is_alive() for thread in threads) and time.monotonic() < start + GRACE_S:
            for rank, thread in enumerate(threads):
                thread.join(timeout=0.01)
                is_due = not all(self.ended) and time.monotonic() >= due[rank]
                if is_due and thread.is_alive() and thread.ident is not None:
                    due[rank] = time.monotonic() + RETRY_S
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Stopped))

    def raise_failure(self) -> None:
        """Raise what ended the run early, if anything did."""
        if self.failure is not None:
            raise self.failure from self.cause


class _ThreadRequest(Request):
    def __init__(
        self, world: _World, rank: int, post: Post, array: torch.Tensor | None = None, like: torch.Tensor | None = None
    ) -> None:
        if world.closed:
            raise MessageError.from_finished_rank(rank)
        self.world, self.rank, self.post, self.like = world, rank, post, like
        self.snapshot = None if array is None else Snapshot(array)
        self.received: torch.Tensor | None = None
        self.matched = self.finished = False
        self.number = world.posts[rank]
        world.posts[rank] += 1
        world.logs[rank].append(post)
        world.match(self)

    def wait(self) -> torch.Tensor | None:
        """Wait for the other side; return the array of a receive, None for a send."""
        self.world.block(self)
        if not self.finished:
            self.finished = True
            self.world.logs[self.rank].append(Finish(self.number))
        if self.snapshot is not None:
            self.snapshot.require_unchanged(self.rank, self.post.peer)
            return None
        assert self.received is not None
        check_received(self.received, self.like, self.post.peer, self.rank)
        return self.received


class _ThreadEndpoint(Endpoint):
    def __init__(self, world: _World, rank: int) -> None:
        self.world, self.address, self.size = world, rank, world.size

    @property
    def num_posts(self) -> int:
        return self.world.posts[self.address]

    def post_send(self, array: torch.Tensor, destination: int, purpose: str, channel: str) -> Request:
        post = Post("send", destination, array.nbytes, purpose, channel)
        return _ThreadRequest(self.world, self.address, post, array)

    def post_receive(self, source: int, like: torch.Tensor | None, channel: str) -> Request:
        return _ThreadRequest(self.world, self.address, Post("recv", source, channel=channel), like=like)


def _cpu_s(thread: threading.Thread) -> float:
    """CPU time of a thread in seconds, 0 if it has ended; wall-clock time if the system does not measure it."""
    if not thread.is_alive():  # the C library may read its freed memory
        return 0.0
    if not hasattr(time, "pthread_getcpuclockid") or thread.ident is None:
        return time.monotonic()
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    except OSError:  # it has just ended
        return 0.0
