"""One launch of a simulated kernel: runs the blocks one after another and reports errors in one line."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.cells import KernelError
from mlsys_lab.kernels.trace.events import Buffer
from mlsys_lab.kernels.trace.numba_functions import find_kernels, locate, python_function, simulate
from mlsys_lab.kernels.trace.numba_memory import Guarded, Memory, poison
from mlsys_lab.kernels.trace.numba_module import Cuda, Space
from mlsys_lab.kernels.trace.numba_numbers import Convert, as_numba
from mlsys_lab.kernels.trace.numba_threads import Block, Dim3, Thread, Workers
from mlsys_lab.kernels.trace.numba_turns import Instructions, Turns

MAX_THREADS = 1024
"""Threads of the largest block."""

SHARED_BYTES = 48 * 1024
"""Shared memory available to a kernel's own arrays in a block."""

SHARED_ALIGNMENT = 16
"""Alignment of shared arrays in bytes: a model, since compilers choose their own."""

Extent = int | tuple[int, ...]

Calls = tuple[tuple[int, int], ...]
"""Code and instruction of a kernel and of the kernels that called it."""


class Launch:
    """A simulated launch without recording: out-of-bounds indices and divergent barriers raise InputError."""

    memory: type[Memory] = Guarded
    counts_turns = False
    thread: Thread
    block_index: Dim3

    def __init__(self, kernel: Any, grid: Extent, block: Extent) -> None:
        self.grid, self.block = _extent("grid", grid), _extent("block", block)
        if (threads := self.block.x * self.block.y * self.block.z) > MAX_THREADS:
            raise InputError("threads of a block", got=threads, expected=f"at most {MAX_THREADS}")
        function = python_function(kernel)
        self.name, self.parameters = function.__name__, list(inspect.signature(function).parameters)
        self.instruction_of = Instructions()
        self.kernel = simulate(function, Cuda(self), Turns(self, self.instruction_of) if self.counts_turns else None)
        self.block_number = self.phase = 0
        self.shared: dict[Calls, Memory] = {}  # of the block that runs, by the place that asked for it
        self.buffers: list[Buffer] = []
        self._buffer_of: dict[Calls, int] = {}  # by place
        self._shared_bytes = 0

    def run(self, args: tuple[Any, ...]) -> None:
        """Run every block; arrays among the arguments change in place."""
        if len(args) != len(self.parameters):
            raise InputError(f"arguments of {self.name}", got=len(args), expected=", ".join(self.parameters))
        given = [self._argument(name, value) for name, value in zip(self.parameters, args, strict=True)]
        with np.errstate(all="ignore"):
            self._workers = Workers(lambda: self.kernel(*given))
            for number, index in enumerate(_indices(self.grid)):
                self.block_number, self.block_index, self.phase, self.shared = number, index, 0, {}
                self._run_block(Block(self.block))

    def on_access(self, kind: int, memory: Memory, element: int) -> None:
        """Hook called before every access, with its kind, array and element."""

    def on_arrival(self, frame: FrameType) -> str:
        """Hook called for a thread at a barrier; returns `file:line` of the barrier."""
        return f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def on_fence(self, *, device: bool) -> None:
        """Hook called for a thread at a fence."""

    def on_exchange(self, memory: Memory, element: int) -> None:
        """Hook called for a thread that has exchanged an element, or compared and swapped it, for another value."""

    def on_warp_stop(self, warp: list[Thread]) -> None:
        """Hook called for a warp whose threads are all at their next barrier or at their end."""

    def on_barrier(self, block: Block, waiting: list[Thread]) -> None:
        """Hook called with the threads that wait for their block, when no other thread can go on."""
        places = {thread.waiting.where for thread in waiting if thread.waiting is not None}
        if len(waiting) < len(block.threads) or len(places) > 1:
            raise InputError(
                f"{' and '.join(sorted(places))}: not all threads of block {tuple(self.block_index)} reach one barrier",
                got=f"{len(waiting)} of {len(block.threads)} threads at {len(places)} barriers",
            )

    def allocate(self, space: Space, shape: Any, dtype: Any, frame: FrameType) -> Memory:
        """The array of one call of cuda.shared.array (one for all threads of a block) or of cuda.local.array."""
        place = tuple((id(one.f_code), self.instruction_of(one)) for one in find_kernels(frame))
        if space == "shared" and place in self.shared:
            return self.shared[place]
        if space == "shared" and 0 in (shape if isinstance(shape, tuple) else (shape,)):
            what = "cuda.shared.array(0, …) is dynamic shared memory, of which these launches have none"
            raise InputError(what, help="give the array's shape, in constants")
        dtype = _dtype(dtype)
        values = np.full(shape, poison(dtype), dtype)
        if place not in self._buffer_of:
            self._buffer_of[place] = self._new_array(space, values, frame)
        number = self._buffer_of[place]
        memory = self.memory(self.buffers[number].name, values, self.on_access, number)
        if space == "shared":
            self.shared[place] = memory
        return memory

    def _new_array(self, space: Space, values: np.ndarray, frame: FrameType) -> int:
        text = inspect.getframeinfo(frame, context=1).code_context or [""]
        name, equals, _ = text[0].partition("=")
        name = name.strip() if equals and name.strip().isidentifier() else f"line {frame.f_lineno}"
        start = 0
        if space == "shared":
            start = -(-self._shared_bytes // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
            self._shared_bytes = start + values.nbytes
            if self._shared_bytes > SHARED_BYTES:
                what = f"{self.name} has too much shared memory"
                raise InputError(what, got=f"{self._shared_bytes} bytes", expected=f"at most {SHARED_BYTES}")
        return self.add(name, space, values, start)

    def add(self, name: str, space: Space, values: np.ndarray, start: int = 0) -> int:
        """Number of a new buffer called `name`; a buffer in global memory has values."""
        written = space == "global"
        self.buffers.append(Buffer(name, space, values.shape, values.itemsize, values.strides, written, start))
        return len(self.buffers) - 1

    def _argument(self, name: str, value: Any) -> Any:
        if isinstance(value, np.generic) or not hasattr(value, "ndim"):
            return as_numba(value)
        values = _host_array(name, value)
        return self.memory(name, values, self.on_access, self.add(name, "global", values))

    def _run_block(self, block: Block) -> None:
        while True:
            for warp in block.warps:
                block.advance(warp, self._resume)
                self.on_warp_stop(warp)
            if not (waiting := block.at_barrier):
                return
            self.on_barrier(block, waiting)
            block.release()
            self.phase += 1

    def _resume(self, thread: Thread) -> None:
        self.thread = thread
        try:
            self._workers.resume(thread)
        except NotImplementedError:
            raise  # a task that is still to do
        except Exception as error:
            reason = error if isinstance(error, InputError) else _say(error)
            who = f"thread {tuple(thread.index)} of block {tuple(self.block_index)}"
            raise KernelError(*locate(error), f"{self.name} stops in {who}: {reason}") from error


def _say(error: Exception) -> str:
    """An exception in words: what Python says of the simulator's arrays, in a kernel's."""
    said = str(error)
    computed = "operand type" in said or "not supported between" in said
    if isinstance(error, TypeError) and computed and f"'{Memory.__name__}'" in said:
        return "an array is computed with as a whole, where a kernel computes with elements, such as x[i]"
    if isinstance(error, IndexError) and "scalar variable" in said:
        return "a number is indexed as if it were an array"
    if isinstance(error, UnboundLocalError):
        return f"{said}: this thread took no branch and no iteration that sets it"
    return f"{type(error).__name__}: {said}"


def _extent(what: str, extent: Extent) -> Dim3:
    sides = extent if isinstance(extent, tuple) else (extent,)
    if not 1 <= len(sides) <= 3 or not all(isinstance(n, int | np.integer) and n >= 1 for n in sides):
        got = extent if isinstance(extent, int | float | tuple | list) else type(extent).__name__
        raise InputError(f"{what} of a launch", got=got, expected="one to three integers of at least 1")
    x, y, z = (*map(int, sides), 1, 1)[:3]
    return Dim3(x, y, z)


def _indices(extent: Dim3) -> Iterator[Dim3]:
    return (Dim3(x, y, z) for z in range(extent.z) for y in range(extent.y) for x in range(extent.x))


def _dtype(dtype: Any) -> np.dtype[Any]:
    import numba
    from numba.np.numpy_support import as_dtype

    if isinstance(dtype, Convert):
        return dtype.dtype
    numbas: bool = isinstance(dtype, numba.types.Type)
    found: np.dtype[Any] = as_dtype(dtype) if numbas else np.dtype(dtype)
    return found


def _host_array(name: str, value: Any) -> np.ndarray:
    try:
        values = value.detach().numpy() if hasattr(value, "detach") else np.asarray(value)
    except (TypeError, RuntimeError) as error:
        raise InputError(f"{name} cannot be looked at in the host's memory: {error}") from None
    regular = all(stride >= 0 and stride % values.itemsize == 0 for stride in values.strides)
    if values.ndim == 0 or values.dtype.kind not in "biufc" or not regular:
        got = f"{values.dtype} of shape {values.shape} with strides {values.strides}"
        raise InputError(f"{name} must be an array of numbers with strides of whole elements, not below 0", got=got)
    return values
