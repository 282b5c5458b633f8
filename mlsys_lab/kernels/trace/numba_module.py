"""The module `cuda` of a simulated kernel: the part of Numba's interface that kernels use.

Fences have no effect when threads run one at a time, but the launch records them; unsupported names raise an error.
`syncwarp` synchronizes the lanes of a warp and orders their memory accesses; shuffles and votes synchronize without
ordering, as on the device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any, Literal, NoReturn, Protocol

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.events import WARP
from mlsys_lab.kernels.trace.numba_memory import Memory
from mlsys_lab.kernels.trace.numba_threads import FULL_MASK, Dim3, Thread, Waiting, wait

WORD = 0xFFFFFFFF
"""Mask of the 32 bits that popc, clz, ffs and brev look at."""


Space = Literal["global", "shared", "local"]


class Host(Protocol):
    """Type of the launch that a kernel runs in, as `Cuda` needs it."""

    thread: Thread
    block_index: Dim3
    grid: Dim3
    block: Dim3

    def allocate(self, space: Space, shape: Any, dtype: Any, frame: FrameType) -> Memory:
        """The array that one call of cuda.shared.array or cuda.local.array stands for."""

    def on_arrival(self, frame: FrameType) -> str:
        """Note that the running thread is at a barrier; returns `file:line` of the barrier."""

    def on_fence(self, *, device: bool) -> None:
        """Note that the running thread's accesses are ordered, for all threads of the `device` or for its block."""

    def on_exchange(self, memory: Memory, element: int) -> None:
        """Note that the running thread has exchanged an element, or compared and swapped it, for another value."""


class Cuda:
    """Stand-in for the module `numba.cuda` in a simulated kernel."""

    warpsize = WARP

    def __init__(self, host: Host) -> None:
        self._host = host
        self.gridDim, self.blockDim = host.grid, host.block
        self.shared, self.local = _arrays(host, "shared"), _arrays(host, "local")
        self.atomic = Atomic(host)

    def __getattr__(self, name: str) -> NoReturn:
        raise InputError(f"cuda.{name} is not simulated")

    @property
    def threadIdx(self) -> Dim3:
        """Index of the thread within its block."""
        return self._host.thread.index

    @property
    def blockIdx(self) -> Dim3:
        """Index of the block within the grid."""
        return self._host.block_index

    @property
    def laneid(self) -> int:
        """Number of the thread within its warp."""
        return self._host.thread.lane

    def grid(self, ndim: int) -> Any:
        """Index of the thread among all threads of the grid, along `ndim` axes."""
        thread, block = self._host.thread.index, self._host.block_index
        return _axes(ndim, [b * n + t for t, b, n in zip(thread, block, self.blockDim, strict=True)])

    def gridsize(self, ndim: int) -> Any:
        """Number of all threads of the grid, along `ndim` axes."""
        return _axes(ndim, [n * blocks for n, blocks in zip(self.blockDim, self.gridDim, strict=True)])

    def syncthreads(self) -> None:
        """Wait for all threads of the block."""
        self._barrier("syncthreads")

    def syncthreads_count(self, predicate: Any) -> Any:
        """Wait for the block; returns how many of its threads came with a true predicate."""
        return self._barrier("syncthreads_count", predicate)

    def syncthreads_and(self, predicate: Any) -> Any:
        """Wait for the block; returns whether all its threads came with a true predicate."""
        return self._barrier("syncthreads_and", predicate)

    def syncthreads_or(self, predicate: Any) -> Any:
        """Wait for the block; returns whether any of its threads came with a true predicate."""
        return self._barrier("syncthreads_or", predicate)

    def _barrier(self, name: str, value: Any = None) -> Any:
        return wait(Waiting(name, self._host.on_arrival(sys._getframe(2)), None, value))

    def syncwarp(self, mask: int = FULL_MASK) -> None:
        """Wait for the lanes of the warp that the mask names."""
        _with_warp("syncwarp", mask)

    def shfl_sync(self, mask: int, value: Any, lane: int) -> Any:
        """The value of lane `lane` of the warp."""
        return _with_warp("shfl_sync", mask, value, lane)

    def shfl_up_sync(self, mask: int, value: Any, delta: int) -> Any:
        """The value of the lane `delta` below this one."""
        return _with_warp("shfl_up_sync", mask, value, delta)

    def shfl_down_sync(self, mask: int, value: Any, delta: int) -> Any:
        """The value of the lane `delta` above this one."""
        return _with_warp("shfl_down_sync", mask, value, delta)

    def shfl_xor_sync(self, mask: int, value: Any, flip: int) -> Any:
        """The value of the lane whose number differs in the bits of `flip`."""
        return _with_warp("shfl_xor_sync", mask, value, flip)

    def ballot_sync(self, mask: int, predicate: Any) -> Any:
        """A number with a bit set for each lane of the warp that came with a true predicate."""
        return _with_warp("ballot_sync", mask, predicate)

    def any_sync(self, mask: int, predicate: Any) -> Any:
        """Whether any lane of the warp came with a true predicate."""
        return _with_warp("any_sync", mask, predicate)

    def all_sync(self, mask: int, predicate: Any) -> Any:
        """Whether all lanes of the warp came with a true predicate."""
        return _with_warp("all_sync", mask, predicate)

    def threadfence(self) -> None:
        """Order the thread's accesses for all threads of the device."""
        self._host.on_fence(device=True)

    threadfence_system = threadfence

    def threadfence_block(self) -> None:
        """Order the thread's accesses for the threads of its block."""
        self._host.on_fence(device=False)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Fused multiply-add a·b + c, here rounded twice."""
        return a * b + c

    def selp(self, condition: Any, a: Any, b: Any) -> Any:
        """`a` if the condition holds, else `b`."""
        return a if condition else b

    def popc(self, value: int) -> int:
        """Number of bits that are set, of 32."""
        return (value & WORD).bit_count()

    def clz(self, value: int) -> int:
        """Number of zeros above the highest bit that is set, of 32."""
        return 32 - (value & WORD).bit_length()

    def ffs(self, value: int) -> int:
        """Position of the lowest bit that is set, counted from 1; 0 for none."""
        return (value & -value & WORD).bit_length()

    def brev(self, value: int) -> int:
        """The 32 bits in reverse order."""
        return int(f"{value & WORD:032b}"[::-1], 2)


class Atomic:
    """Stand-in for `cuda.atomic`: each method reads an element, stores a new value, and returns the old one."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def add(self, array: Memory, index: Any, value: Any) -> Any:
        """Store old + value; returns the old value."""
        return array.update(index, lambda old: old + value)

    def sub(self, array: Memory, index: Any, value: Any) -> Any:
        """Store old − value; returns the old value."""
        return array.update(index, lambda old: old - value)

    def max(self, array: Memory, index: Any, value: Any) -> Any:
        """Store the larger of old and value; returns the old value."""
        return array.update(index, lambda old: max(old, value))

    def min(self, array: Memory, index: Any, value: Any) -> Any:
        """Store the smaller of old and value; returns the old value."""
        return array.update(index, lambda old: min(old, value))

    def and_(self, array: Memory, index: Any, value: Any) -> Any:
        """Store the bits that both old and value have; returns the old value."""
        return array.update(index, lambda old: old & value)

    def or_(self, array: Memory, index: Any, value: Any) -> Any:
        """Store the bits that old or value has; returns the old value."""
        return array.update(index, lambda old: old | value)

    def xor(self, array: Memory, index: Any, value: Any) -> Any:
        """Store the bits that just one of old and value has; returns the old value."""
        return array.update(index, lambda old: old ^ value)

    def inc(self, array: Memory, index: Any, value: Any) -> Any:
        """Store old + 1, or 0 if old is `value` or more; returns the old value."""
        return array.update(index, lambda old: 0 if old >= value else old + 1)

    def dec(self, array: Memory, index: Any, value: Any) -> Any:
        """Store old − 1, or `value` if old is 0 or above `value`; returns the old value."""
        return array.update(index, lambda old: value if old == 0 or old > value else old - 1)

    def exch(self, array: Memory, index: Any, value: Any) -> Any:
        """Store the value; returns the old value."""
        old = array.update(index, lambda old: value)
        if old != value:
            self._host.on_exchange(array, array.element(index))
        return old

    def cas(self, array: Memory, index: Any, old: Any, value: Any) -> Any:
        """Store `value` if the element equals `old`; returns what was found."""
        found = array.update(index, lambda found: value if found == old else found)
        if found == old != value:
            self._host.on_exchange(array, array.element(index))
        return found

    def compare_and_swap(self, array: Memory, old: Any, value: Any) -> Any:
        """Store `value` in the first element if that equals `old`; returns what was found."""
        index = (0,) * array.ndim
        found = array.update(index, lambda found: value if found == old else found)
        if found == old != value:
            self._host.on_exchange(array, array.element(index))
        return found


def _axes(ndim: int, places: list[int]) -> Any:
    return places[0] if ndim == 1 else tuple(places[:ndim])


def _arrays(host: Host, space: Space) -> SimpleNamespace:
    def array(shape: Any, dtype: Any) -> Memory:
        return host.allocate(space, shape, dtype, sys._getframe(1))

    array.__qualname__ = f"cuda.{space}.array"  # as Python calls it where arguments are missing
    make: Callable[[Any, Any], Memory] = array
    return SimpleNamespace(array=make)


def _with_warp(name: str, mask: int, value: Any = None, argument: int = 0) -> Any:
    frame = sys._getframe(2)
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return wait(Waiting(name, where, mask & WORD, value, argument))
