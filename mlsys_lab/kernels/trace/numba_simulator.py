"""Run or record Numba CUDA kernels without a GPU, thread by thread.

Takes the result of `@cuda.jit`, on a machine with or without a GPU, and runs the Python function in it; no environment
variable is needed. The threads of a block run one at a time, x fastest, each up to its next barrier, and the blocks one
after another, so a race has the same outcome every time; the recorded trace reveals it.

The threads of a warp that execute an instruction in the same iterations of its enclosing loops, between the same
barriers, make one request together (see `numba_turns`). The trace ignores compiler optimizations: an element that the
source reads twice counts twice even if the compiler merges the loads, stores in the two branches of an `if` are two
requests even if it merges them, and local arrays that end up in registers count as memory.
"""

from __future__ import annotations

import linecache
import sys
from array import array
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
from numpy.lib.recfunctions import unstructured_to_structured

from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.kernels.trace.events import ACCESS, ARRIVAL, ATOMIC, STORE, Site, Trace
from mlsys_lab.kernels.trace.numba_grid import Extent, Launch
from mlsys_lab.kernels.trace.numba_memory import Memory, poison
from mlsys_lab.kernels.trace.numba_module import Space
from mlsys_lab.kernels.trace.numba_threads import Block, Held, Thread

NOTED = ("kind", "buffer", "site", "thread", "offset", "sync", "value", "lock")
"""Fields noted at an access; its lock is known when that is released."""


def run(kernel: Any, grid: Extent, block: Extent, *args: Any) -> None:
    """Run a kernel as `kernel[grid, block](*args)` would; arrays (contiguous, in host memory) change in place.

    Raises InputError with the kernel's source line for an error in a thread, an out-of-bounds index, and a barrier that
    not all threads of a block reach.
    """
    Launch(kernel, grid, block).run(args)


def record(kernel: Any, grid: Extent, block: Extent, *args: Any, outputs: str | Sequence[str] = ()) -> Trace:
    """Run a kernel as `run` does and record its memory accesses.

    `outputs` names uninitialized parameters: they are filled with NaN or the largest integer, as shared and local
    arrays are. An out-of-bounds access is recorded and harmless. A barrier that some threads do not reach is recorded,
    and the other threads continue. Raises InputError for an error in a thread.
    """
    recording = _Recording(kernel, grid, block, (outputs,) if isinstance(outputs, str) else outputs)
    recording.run(args)
    return recording.trace()


class _Recording(Launch):
    """A simulated launch that records every access and every arrival at a barrier."""

    memory = Memory
    counts_turns = True

    def __init__(self, kernel: Any, grid: Extent, block: Extent, outputs: Sequence[str]) -> None:
        super().__init__(kernel, grid, block)
        for name in outputs:
            if name not in self.parameters:
                raise InputError(f"{self.name} has no such output", got=name, help=did_you_mean(name, self.parameters))
        self._outputs = outputs
        self._sites: dict[tuple[str, int], int] = {}
        self._arrivals = array("q")
        self._rows: list[np.ndarray] = []
        self._requests = 0
        self._locks: dict[tuple[int, ...], int] = {}
        self._begin_warp()

    def add(self, name: str, space: Space, values: np.ndarray, start: int = 0) -> int:
        """Add a buffer and return its index; an output's values are replaced by poison."""
        number = super().add(name, space, values, start)
        if space == "global" and name in self._outputs:
            values[...] = poison(values.dtype)
            self.buffers[number] = replace(self.buffers[number], initialized=False)
        return number

    def _begin_warp(self) -> None:
        self._warp = array("q")  # rows: request of this warp and phase, then `NOTED`
        self._numbers: dict[tuple[int, ...], int] = {}  # a request, by the path and the place of its lanes
        self._site_of: list[int] = []  # by request

    def on_access(self, kind: int, memory: Memory, element: int) -> None:
        """Record an access of the running thread: its request and its source line."""
        frame = sys._getframe(2)
        if kind == ATOMIC:
            frame = frame.f_back  # type: ignore[assignment]  # through cuda.atomic
        thread = self.thread
        at = (*thread.path, self.instruction_of(frame))
        request = self._numbers.get(at)
        if request is None:
            request = self._numbers[at] = len(self._numbers)
            self._site_of.append(self._site(frame))
        offset = element * memory.dtype.itemsize
        if thread.held is not None:
            thread.held.accesses.append(len(self._warp) + len(NOTED))
        site, value = self._site_of[request], memory.bits(element) if kind == STORE else 0
        self._warp.extend((request, kind, memory.number, site, thread.number, offset, thread.syncs, value, 0))

    def on_fence(self, *, device: bool) -> None:
        """Let the lock that the running thread holds protect its accesses since it was acquired."""
        if (held := self.thread.held) is not None:
            held.device = held.device and device
            held.protected += held.accesses
            held.accesses.clear()

    def on_exchange(self, memory: Memory, element: int) -> None:
        """Acquire an element as a lock, or release it if the running thread holds it."""
        block = self.block_number if self.buffers[memory.number].space == "shared" else -1
        lock, held = (memory.number, element, block), self.thread.held
        if held is None or held.element != lock:
            self.thread.held = Held(lock)
            return
        self.thread.held = None
        key = lock if held.device else (*lock, self.block_number)
        number = self._locks.setdefault(key, len(self._locks) + 1)
        for place in held.protected:
            self._warp[place] = number

    def on_arrival(self, frame: FrameType) -> str:
        self._arrivals.extend((self._site(frame), self.block_number, self.thread.number, self.phase))
        return super().on_arrival(frame)

    def on_barrier(self, block: Block, waiting: list[Thread]) -> None:
        """Let the waiting threads continue; the recorded arrivals show which were missing."""

    def on_warp_stop(self, warp: list[Thread]) -> None:
        """Number the requests of a warp in time order, which is the order of their paths."""
        ranks = np.empty(len(self._numbers), np.int64)
        for rank, at in enumerate(sorted(self._numbers)):
            ranks[self._numbers[at]] = rank
        found = np.frombuffer(self._warp, np.int64).reshape(-1, 1 + len(NOTED))
        rows = np.zeros(len(found), ACCESS)
        rows["request"] = ranks[found[:, 0]] + self._requests
        for column, name in enumerate(NOTED, start=1):
            rows[name] = found[:, column]
        rows["block"], rows["phase"] = self.block_number, self.phase
        self._rows.append(rows[np.argsort(rows["request"], kind="stable")])
        self._requests += len(self._numbers)
        for thread in warp:
            thread.held = None  # a lock that is kept across a barrier is not followed
        self._begin_warp()

    def _site(self, frame: FrameType) -> int:
        return self._sites.setdefault((frame.f_code.co_filename, frame.f_lineno), len(self._sites))

    def trace(self) -> Trace:
        """The trace of everything that was recorded."""
        arrivals = np.frombuffer(self._arrivals, np.int64).reshape(-1, 4)
        return Trace(
            kernel=self.name,
            grid=(self.grid.x, self.grid.y, self.grid.z),
            block=(self.block.x, self.block.y, self.block.z),
            buffers=tuple(self.buffers),
            sites=tuple(Site(file, line, linecache.getline(file, line).strip()) for file, line in self._sites),
            accesses=np.concatenate([np.empty(0, ACCESS), *self._rows]),
            arrivals=unstructured_to_structured(arrivals, ARRIVAL),
        )
