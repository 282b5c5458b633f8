"""What a simulated kernel finds under the name `cuda`: the part of Numba's interface that kernels use.

What has no effect when threads run one at a time (fences) is there and does nothing; all else is refused by name.
`syncwarp` makes the lanes of a warp wait for each other, but is not a barrier of the record: only the block's count.
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
"""The bits that popc, clz, ffs and brev look at."""


Space = Literal["global", "shared", "local"]


class Host(Protocol):
    """The launch that a kernel runs in."""

    thread: Thread
    block_index: Dim3
    grid: Dim3
    block: Dim3

    def allocate(self, space: Space, shape: Any, dtype: Any, frame: FrameType) -> Memory:
        """The array that one call of cuda.shared.array or cuda.local.array stands for."""

    def arrive(self, frame: FrameType) -> str:
        """Note that the running thread is at a barrier; file:line of it."""


class Cuda:
    """Stands for the module `numba.cuda` in a kernel."""

    warpsize = WARP

    def __init__(self, host: Host) -> None:
        self._host = host
        self.gridDim, self.blockDim = host.grid, host.block
        self.shared, self.local = _arrays(host, "shared"), _arrays(host, "local")
        self.atomic = Atomic()

    def __getattr__(self, name: str) -> NoReturn:
        raise InputError(f"cuda.{name} is not simulated")

    @property
    def threadIdx(self) -> Dim3:
        """The thread within its block."""
        return self._host.thread.index

    @property
    def blockIdx(self) -> Dim3:
        """The block within the grid."""
        return self._host.block_index

    @property
    def laneid(self) -> int:
        """The thread within its warp."""
        return self._host.thread.lane

    def grid(self, ndim: int) -> Any:
        """The thread's place among all threads, along `ndim` axes."""
        thread, block = self._host.thread.index, self._host.block_index
        return _axes(ndim, [b * n + t for t, b, n in zip(thread, block, self.blockDim, strict=True)])

    def gridsize(self, ndim: int) -> Any:
        """All threads along `ndim` axes."""
        return _axes(ndim, [n * blocks for n, blocks in zip(self.blockDim, self.gridDim, strict=True)])

    def syncthreads(self) -> None:
        """Wait for the block."""
        self._barrier("syncthreads")

    def syncthreads_count(self, predicate: Any) -> Any:
        """Wait for the block; how many of its threads came with a true predicate."""
        return self._barrier("syncthreads_count", predicate)

    def syncthreads_and(self, predicate: Any) -> Any:
        """Wait for the block; whether all its threads came with a true predicate."""
        return self._barrier("syncthreads_and", predicate)

    def syncthreads_or(self, predicate: Any) -> Any:
        """Wait for the block; whether one of its threads came with a true predicate."""
        return self._barrier("syncthreads_or", predicate)

    def _barrier(self, name: str, value: Any = None) -> Any:
        return wait(Waiting(name, self._host.arrive(sys._getframe(2)), None, value))

    def syncwarp(self, mask: int = FULL_MASK) -> None:
        """Wait for the lanes of the warp that the mask names."""
        _with_warp("syncwarp", mask)

    def shfl_sync(self, mask: int, value: Any, lane: int) -> Any:
        """The value of a lane."""
        return _with_warp("shfl_sync", mask, value, lane)

    def shfl_up_sync(self, mask: int, value: Any, delta: int) -> Any:
        """The value of the lane `delta` below."""
        return _with_warp("shfl_up_sync", mask, value, delta)

    def shfl_down_sync(self, mask: int, value: Any, delta: int) -> Any:
        """The value of the lane `delta` above."""
        return _with_warp("shfl_down_sync", mask, value, delta)

    def shfl_xor_sync(self, mask: int, value: Any, flip: int) -> Any:
        """The value of the lane whose number differs in the bits of `flip`."""
        return _with_warp("shfl_xor_sync", mask, value, flip)

    def ballot_sync(self, mask: int, predicate: Any) -> Any:
        """A bit for each lane that came with a true predicate."""
        return _with_warp("ballot_sync", mask, predicate)

    def any_sync(self, mask: int, predicate: Any) -> Any:
        """Whether one lane came with a true predicate."""
        return _with_warp("any_sync", mask, predicate)

    def all_sync(self, mask: int, predicate: Any) -> Any:
        """Whether all lanes came with a true predicate."""
        return _with_warp("all_sync", mask, predicate)

    def threadfence(self) -> None:
        """Nothing: stores are seen at once."""

    threadfence_block = threadfence_system = threadfence

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a·b + c, here rounded twice."""
        return a * b + c

    def selp(self, condition: Any, a: Any, b: Any) -> Any:
        """`a` if the condition holds, else `b`."""
        return a if condition else b

    def popc(self, value: int) -> int:
        """Bits that are set, of 32."""
        return (value & WORD).bit_count()

    def clz(self, value: int) -> int:
        """Zeros above the highest bit that is set, of 32."""
        return 32 - (value & WORD).bit_length()

    def ffs(self, value: int) -> int:
        """The lowest bit that is set, counted from 1; 0 for none."""
        return (value & -value & WORD).bit_length()

    def brev(self, value: int) -> int:
        """32 bits in reverse."""
        return int(f"{value & WORD:032b}"[::-1], 2)


class Atomic:
    """`cuda.atomic`: each reads an element, stores what it makes of it, and returns what it read."""

    def add(self, array: Memory, index: Any, value: Any) -> Any:
        """Old + value."""
        return array.update(index, lambda old: old + value)

    def sub(self, array: Memory, index: Any, value: Any) -> Any:
        """Old − value."""
        return array.update(index, lambda old: old - value)

    def max(self, array: Memory, index: Any, value: Any) -> Any:
        """The larger one."""
        return array.update(index, lambda old: max(old, value))

    def min(self, array: Memory, index: Any, value: Any) -> Any:
        """The smaller one."""
        return array.update(index, lambda old: min(old, value))

    def and_(self, array: Memory, index: Any, value: Any) -> Any:
        """Bits that both have."""
        return array.update(index, lambda old: old & value)

    def or_(self, array: Memory, index: Any, value: Any) -> Any:
        """Bits that one of them has."""
        return array.update(index, lambda old: old | value)

    def xor(self, array: Memory, index: Any, value: Any) -> Any:
        """Bits that one of them has and the other not."""
        return array.update(index, lambda old: old ^ value)

    def inc(self, array: Memory, index: Any, value: Any) -> Any:
        """Old + 1, or 0 from `value` on."""
        return array.update(index, lambda old: 0 if old >= value else old + 1)

    def dec(self, array: Memory, index: Any, value: Any) -> Any:
        """Old − 1, or `value` from 0 and from above `value`."""
        return array.update(index, lambda old: value if old == 0 or old > value else old - 1)

    def exch(self, array: Memory, index: Any, value: Any) -> Any:
        """The value."""
        return array.update(index, lambda old: value)

    def cas(self, array: Memory, index: Any, old: Any, value: Any) -> Any:
        """The value where `old` was found, else what was found."""
        return array.update(index, lambda found: value if found == old else found)

    def compare_and_swap(self, array: Memory, old: Any, value: Any) -> Any:
        """`cas` on the first element."""
        return array.update((0,) * array.ndim, lambda found: value if found == old else found)


def _axes(ndim: int, places: list[int]) -> Any:
    return places[0] if ndim == 1 else tuple(places[:ndim])


def _arrays(host: Host, space: Space) -> SimpleNamespace:
    def array(shape: Any, dtype: Any) -> Memory:
        return host.allocate(space, shape, dtype, sys._getframe(1))

    make: Callable[[Any, Any], Memory] = array
    return SimpleNamespace(array=make)


def _with_warp(name: str, mask: int, value: Any = None, argument: int = 0) -> Any:
    frame = sys._getframe(2)
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return wait(Waiting(name, where, mask & WORD, value, argument))
