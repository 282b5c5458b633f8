"""A world of threads in which one rank runs at a time: the same program and inputs give the same run, always.

A rank keeps the baton until it has to wait, and then hands it on to the next rank, in turn, that can go on. When none
can, the program is deadlocked, and who waits for whom is known exactly.
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

from mlsys_lab.comm.ledger import Finish, Link, Log, Post
from mlsys_lab.comm.rank import Endpoint, Rank, Request, Snapshot, require_alike
from mlsys_lab.comm.seeds import initial_state, keep_random_state, random_state, set_random_state
from mlsys_lab.comm.trouble import DeadlockError, MessageError, RankError, SilentRankError
from mlsys_lab.errors import CourseError, UnfinishedError

POLL_S = 0.05
WALL_FACTOR = 10  # a rank that sleeps uses no CPU: after so many times the limit of CPU time it is given up too
GRACE_S = 3.0  # for threads to end once they have been told to
AGAIN_S = 0.5  # whoever runs on for so long has lost what was thrown


class _Stopped(BaseException):
    """Raised in the threads of ranks that must end since the run is over; no program catches it as an Exception."""


def run_threads(function: Callable[..., Any], inputs: Sequence[Any], limit_s: float) -> tuple[list[Any], list[Log]]:
    """Run `function(rank, input)` on a thread for each input; returns results and logs. See `mlsys_lab.comm.run`."""
    world = _World(len(inputs))
    threads = [
        threading.Thread(target=world.run_rank, args=(function, rank, given), daemon=True, name=f"rank {rank}")
        for rank, given in enumerate(inputs)
    ]
    with keep_random_state():
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
    """What all ranks share: whose turn it is, what has been posted, who waits for what, and what went wrong first."""

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
        self.states = [initial_state(rank) for rank in range(size)]

    # --- the baton ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.turns[0].release()

    def run_rank(self, function: Callable[..., Any], rank: int, given: Any) -> None:
        """Body of a rank's thread: wait for the baton, run the program, and hand the baton on for good."""
        try:
            self._take(rank)
            self.results[rank] = function(Rank(_ThreadEndpoint(self, rank)), given)
        except _Stopped:
            return
        except MessageError as problem:
            self.fail(problem)
            return
        except NotImplementedError as problem:  # a task of a lab: which one, is all that there is to say
            self.fail(UnfinishedError(str(problem)), problem)
            return
        except BaseException as problem:
            self.fail(RankError.of(rank, problem), problem)
            return
        self.ended[rank] = True
        self._hand_on(rank)

    def block(self, request: _ThreadRequest) -> None:
        """Hand on the baton until a request is matched."""
        if not request.matched:
            self.waiting[request.rank] = request
            self._hand_on(request.rank)
            self._take(request.rank)
            self.waiting[request.rank] = None

    def _take(self, rank: int) -> None:
        self.turns[rank].acquire()
        if self.over.is_set():
            raise _Stopped
        self.holder = rank
        set_random_state(self.states[rank])

    def _hand_on(self, rank: int) -> None:
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
        """End the run with this failure, unless there has been one before, which is then the reason for this one."""
        if self.failure is None:
            self.failure, self.cause = failure, cause
        self.over.set()

    # --- messages -----------------------------------------------------------------------------------------------------

    def match(self, request: _ThreadRequest) -> None:
        """Match a request with the earliest one from the other side, or leave it until that comes."""
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
        """Wait for the end, and see that whoever holds the baton does not compute for longer than the limit."""
        holder, cpu_s, since = -1, 0.0, time.monotonic()
        while not self.over.wait(POLL_S):
            now_cpu_s = _cpu_s(threads[self.holder])
            if self.holder != holder:
                holder, cpu_s, since = self.holder, now_cpu_s, time.monotonic()
            elif now_cpu_s - cpu_s > limit_s or time.monotonic() - since > WALL_FACTOR * limit_s:
                what = f"rank {holder} has run for {limit_s:g} s without a message: does it loop?"
                self.fail(SilentRankError(what, holder))

    def stop(self, threads: Sequence[threading.Thread]) -> None:
        """End all threads: those that wait, at once, and one that runs, at its next line of Python."""
        self.over.set()
        for turn in self.turns:
            turn.release()
        # What is thrown into a thread may strike a finaliser, where it comes to nothing, and would be printed there. A
        # builtin prints nothing, and cannot be struck itself; it is thrown again anyway.
        report, sys.unraisablehook = sys.unraisablehook, id
        try:
            self._join(threads)
        finally:
            sys.unraisablehook = report
        if running := [rank for rank, thread in enumerate(threads) if thread.is_alive()]:
            self.failure = RankError(f"{self.failure}; its thread cannot be stopped: restart the kernel", running[0])

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        """Wait for the threads, for a while. Unless all have ended, the one that runs is thrown out; others end alone.

        A throw is lost in a finaliser or a bare `except`: whoever runs on gets another. None follows sooner, for it
        would strike what handles the first.
        """
        start = time.monotonic()
        due = [start if rank == self.holder else start + AGAIN_S for rank in range(self.size)]
        while any(thread.is_alive() for thread in threads) and time.monotonic() < start + GRACE_S:
            for rank, thread in enumerate(threads):
                thread.join(timeout=0.01)
                is_due = not all(self.ended) and time.monotonic() >= due[rank]
                if is_due and thread.is_alive() and thread.ident is not None:
                    due[rank] = time.monotonic() + AGAIN_S
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
            raise MessageError.of_ended(rank)
        self.world, self.rank, self.post, self.like = world, rank, post, like
        self.snapshot = None if array is None else Snapshot(array)
        self.received: torch.Tensor | None = None
        self.matched = self.finished = False
        self.number = world.posts[rank]
        world.posts[rank] += 1
        world.logs[rank].append(post)
        world.match(self)

    def wait(self) -> torch.Tensor | None:
        """Wait for the other side; returns the array of a receive, None for a send."""
        self.world.block(self)
        if not self.finished:
            self.finished = True
            self.world.logs[self.rank].append(Finish(self.number))
        if self.snapshot is not None:
            self.snapshot.require_unchanged(self.rank, self.post.peer)
            return None
        assert self.received is not None
        require_alike(self.received, self.like, self.post.peer, self.rank)
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
    """CPU time of a thread in seconds, 0 of one that has ended; wall time where the system does not tell."""
    if not thread.is_alive():  # the C library may look where its memory was
        return 0.0
    if not hasattr(time, "pthread_getcpuclockid") or thread.ident is None:
        return time.monotonic()
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    except OSError:  # it has just ended
        return 0.0
