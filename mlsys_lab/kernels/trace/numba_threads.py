"""Run CUDA threads one at a time, each up to its next barrier, in a fixed order, so that every run is the same.

A thread runs in a greenlet, which is suspended where its kernel waits. Numba's own simulator starts an operating-system
thread for each and polls them.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from greenlet import getcurrent, greenlet

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.events import WARP
from mlsys_lab.kernels.trace.numba_memory import poison

FULL_MASK = 0xFFFFFFFF


class Dim3(NamedTuple):
    """A position or an extent, along x, y and z."""

    x: int
    y: int
    z: int


@dataclass
class Waiting:
    """A thread's pending barrier, shuffle or vote: with its block, or with the lanes of its warp in `mask`."""

    name: str  # what the kernel called, such as syncthreads or shfl_down_sync
    where: str  # file:line
    mask: int | None  # None: the whole block
    value: Any = None  # this thread's contribution
    argument: int = 0  # the shuffles' lane, distance or lane mask


@dataclass
class Held:
    """A lock that a thread holds, and its accesses since acquiring it: those before its last fence are `protected`."""

    element: tuple[int, int, int]  # the lock: array, position, and block where the array is shared memory, else −1
    device: bool = True  # whether all fences are for the whole device
    accesses: list[int] = field(default_factory=list)
    protected: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Thread:
    """A thread of the running block: its index, its greenlet, and what it is waiting for."""

    number: int  # within the block, x fastest
    index: Dim3
    running: greenlet | None = None  # from its first instruction to its last
    finished: bool = False
    waiting: Waiting | None = None
    answer: Any = None  # the result when it resumes
    syncs: int = 0  # times that it met all of its warp at a syncwarp
    held: Held | None = None
    path: list[int] = field(default_factory=list)  # the calls and the turns of loops that it is in

    @property
    def lane(self) -> int:
        """Number of the thread within its warp."""
        return self.number % WARP


def wait(waiting: Waiting) -> Any:
    """Stop the calling thread until the others have come; returns what they agreed on."""
    return getcurrent().parent.switch(waiting)


class Workers:
    """Pool of greenlets that run threads one after the other: only as many are made as wait at once."""

    def __init__(self, kernel: Callable[[], None]) -> None:
        self._kernel = kernel
        self._idle: list[greenlet] = []

    def resume(self, thread: Thread) -> None:
        """Run a thread until it waits or ends; whatever its kernel raises is raised here."""
        if thread.running is None:
            thread.running = self._idle.pop() if self._idle else self._hire()
        thread.waiting = thread.running.switch(thread.answer) if thread.running else thread.running.switch()
        if thread.waiting is None:
            self._idle.append(thread.running)
            thread.running, thread.finished = None, True

    def _hire(self) -> greenlet:
        worker = greenlet(self._work)
        worker.gr_context = contextvars.copy_context()  # NumPy's errstate is a context variable
        return worker

    def _work(self) -> None:
        while True:
            self._kernel()
            getcurrent().parent.switch(None)


class Block:
    """The threads of one block and their scheduling."""

    def __init__(self, shape: Dim3) -> None:
        places = (Dim3(x, y, z) for z in range(shape.z) for y in range(shape.y) for x in range(shape.x))
        self.threads = [Thread(number, index) for number, index in enumerate(places)]
        self.warps = [self.threads[first : first + WARP] for first in range(0, len(self.threads), WARP)]

    @property
    def at_barrier(self) -> list[Thread]:
        """Threads that wait for the whole block."""
        return [thread for thread in self.threads if thread.waiting is not None]

    def advance(self, warp: list[Thread], resume: Callable[[Thread], None]) -> None:
        """Run each thread of a warp to its next barrier or its end; exchanges within the warp happen on the way."""
        while True:
            for thread in warp:
                if thread.waiting is None and not thread.finished:
                    resume(thread)
            exchanging = [thread for thread in warp if thread.waiting is not None and thread.waiting.mask is not None]
            if not exchanging:
                return
            _exchange(warp, exchanging)

    def release(self) -> None:
        """Resume the threads that wait for their block, with the result of syncthreads_count, _and, _or."""
        waiting = self.at_barrier
        votes = [bool(thread.waiting.value) for thread in waiting if thread.waiting is not None]
        for thread in waiting:
            assert thread.waiting is not None
            thread.answer = _VOTES[thread.waiting.name](votes)
            thread.waiting = None


_VOTES: dict[str, Callable[[list[bool]], int | None]] = {
    "syncthreads": lambda votes: None,
    "syncthreads_count": sum,
    "syncthreads_and": lambda votes: int(all(votes)),
    "syncthreads_or": lambda votes: int(any(votes)),
}


def _exchange(warp: list[Thread], exchanging: list[Thread]) -> None:
    groups: dict[tuple[str, int], list[Thread]] = {}
    for thread in exchanging:
        assert thread.waiting is not None and thread.waiting.mask is not None
        groups.setdefault((thread.waiting.name, thread.waiting.mask), []).append(thread)
    complete = 0
    for (name, mask), group in groups.items():
        missing = [thread.lane for thread in warp if mask >> thread.lane & 1 and thread not in group]
        strangers = [thread.lane for thread in group if not mask >> thread.lane & 1]
        if not missing and not strangers:
            if name == "syncwarp" and len(group) == sum(not thread.finished for thread in warp):
                for thread in group:
                    thread.syncs += 1
            _answer(name, {thread.lane: thread for thread in group})
            complete += 1
    if complete == 0:
        waiting = exchanging[0].waiting
        assert waiting is not None
        raise InputError(
            f"{waiting.where}: {waiting.name} waits for lanes that do not come, or that its mask does not name",
            got=f"lanes {[thread.lane for thread in exchanging]} of the warp of thread {warp[0].number}",
            expected=f"exactly the lanes of mask {waiting.mask:#x}",
        )


def _answer(name: str, lanes: dict[int, Thread]) -> None:
    asked = {lane: thread.waiting for lane, thread in lanes.items() if thread.waiting is not None}
    ballot = sum(1 << lane for lane, waiting in asked.items() if waiting.value)
    for lane, thread in lanes.items():
        own = asked[lane]
        if name in _SOURCE:
            source = _SOURCE[name](lane, own.argument)
            if not 0 <= source < WARP:
                thread.answer = own.value  # beyond the warp, a thread keeps what it has
            elif source in asked:
                thread.answer = asked[source].value
            else:  # a lane that does not exist or is not in the mask: undefined
                thread.answer = poison(np.asarray(own.value).dtype)
        elif name == "ballot_sync":
            thread.answer = ballot
        elif name == "any_sync":
            thread.answer = ballot != 0
        elif name == "all_sync":
            thread.answer = len(asked) == ballot.bit_count()
        thread.waiting = None


_SOURCE: dict[str, Callable[[int, int], int]] = {
    "shfl_sync": lambda lane, source: source % WARP,
    "shfl_up_sync": lambda lane, delta: lane - delta,
    "shfl_down_sync": lambda lane, delta: lane + delta,
    "shfl_xor_sync": lambda lane, flip: lane ^ flip,
}
