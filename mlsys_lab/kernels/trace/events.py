"""Memory accesses of a launch: one row for each lane of each load, store and atomic.

A lane is a CUDA thread, or an element of a Triton block. Every analysis of a launch (traffic, sectors, bank conflicts,
races …) is computed from these rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mlsys_lab.errors import InputError, did_you_mean

LOAD, STORE, ATOMIC = 0, 1, 2
"""Values of the field `kind` of an access; an atomic both loads and stores."""

NO_LOCK, ACQUIRE, RELEASE = 0, 1, 2
"""Values of the field `role`: an atomic may acquire a lock, by a compare-and-swap that succeeds, or release it, by an
exchange; any other access is `NO_LOCK`."""

STORED, ADDRESS, MASK, BRANCH = "is stored", "is used as an address", "is used as a mask", "decides a branch"
"""How an undefined lane takes effect."""

WARP = 32
"""Threads of a warp."""

ACCESS = np.dtype(
    [
        ("request", np.int64),  # which request of a warp this lane belongs to, counted over the launch in order of time
        ("kind", np.int8),
        ("buffer", np.int16),  # index into Trace.buffers
        ("site", np.int16),  # index into Trace.sites
        ("block", np.int32),  # CUDA's block or Triton's program, x fastest
        ("thread", np.int32),  # within the block, x fastest
        ("phase", np.int32),  # barriers that the block had passed
        ("sync", np.int32),  # times that the thread's whole warp had met at a syncwarp
        ("offset", np.int64),  # bytes from the buffer's first element; may lie outside of it
        ("lock", np.int64),  # number of the lock that protects the access, from 1 on; 0: none, or none is known
        ("value", np.int64),  # of a store: equal for equal values of one type; 0: not known
        ("role", np.int8),  # of an atomic: NO_LOCK, ACQUIRE or RELEASE
    ]
)

ARRIVAL = np.dtype([("site", np.int16), ("block", np.int32), ("thread", np.int32), ("phase", np.int32)])
"""dtype of a thread's arrival at a barrier; `phase` counts the barriers that it passed before."""


@dataclass(frozen=True)
class Buffer:
    """An array that a kernel can access: an argument in global memory, or a block's shared or local array."""

    name: str
    space: Literal["global", "shared", "local"]
    shape: tuple[int, ...]
    itemsize: int  # bytes
    strides: tuple[int, ...]  # bytes
    initialized: bool  # whether its elements had values before the launch
    start: int = (
        0  # bytes before the first element: in shared memory since its start, in global since a multiple of 256
    )

    @property
    def size_bytes(self) -> int:
        """Bytes from the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        return self.itemsize + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))

    @property
    def elements(self) -> int:
        """Number of elements of the array."""
        return int(np.prod(self.shape, dtype=np.int64))

    def describe(self, offset: int) -> str:
        """Describe the element at an offset in bytes, in bounds or not.

        >>> Buffer("y", "global", (4, 5), 4, (20, 4), initialized=False).describe(80)
        'element (4, 0) of (4, 5)'
        """
        index, left = [0] * len(self.shape), offset
        for axis in sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis]):
            if self.strides[axis]:
                index[axis], left = divmod(left, self.strides[axis])
        if len(self.shape) == 1:
            return f"element {index[0]} of {self.shape[0]}"
        return f"element {tuple(index)} of {self.shape}" if self.shape else f"byte {offset} of {self.itemsize}"


@dataclass(frozen=True, order=True)
class Site:
    """A source line of a kernel that accesses memory."""

    file: str
    line: int
    text: str  # the line, stripped

    def __str__(self) -> str:
        return f"line {self.line} `{self.text}`"


@dataclass(frozen=True)
class Undefined:
    """An undefined lane of a masked load that takes effect: the first one for its source lines."""

    load: int  # indices into Trace.sites: of the masked load,
    reduction: int  # of the first reduction that it goes into, −1 if there is none,
    site: int  # and of the line where it takes effect
    effect: str  # STORED, ADDRESS, MASK or BRANCH
    program: int
    place: str  # what is stored to, in words


@dataclass(frozen=True, eq=False)
class Trace:
    """Record of one launch: grid, arrays, source lines, accesses and arrivals at barriers."""

    kernel: str
    grid: tuple[int, int, int]  # blocks along x, y, z
    block: tuple[int, int, int]  # threads of a block along x, y, z
    buffers: tuple[Buffer, ...]
    sites: tuple[Site, ...]
    accesses: np.ndarray  # (A,) of ACCESS, in order of `request`
    arrivals: np.ndarray  # (B,) of ARRIVAL
    unit_names: tuple[str, str] = ("block", "thread")  # in the kernel's language
    undefined: tuple[Undefined, ...] = ()  # where undefined lanes take effect

    def describe_undefined(self, one: Undefined, where: Callable[[Site], str] = str) -> str:
        """One line about an undefined lane; `where` formats its source lines."""
        load, site = where(self.sites[one.load]), where(self.sites[one.site])
        if one.reduction < 0:
            reaches = f"leaves lanes undefined, and such a lane {one.effect} at {site}"
        else:
            reduction = where(self.sites[one.reduction])
            reaches = f"reaches a reduction at {reduction}, and the result {one.effect} at {site}"
        place = f", {one.place}" if one.effect == STORED else ""
        return f"{load}: masked load without `other` {reaches} (first: {self.describe_actor(one.program)}{place})"

    def describe_actor(self, block: int | None = None, thread: int | None = None) -> str:
        """Name a block, a thread or both, with indices along x, y and z if there are several dimensions."""
        both = ((block, self.grid), (thread, self.block))
        named = zip(self.unit_names, both, strict=True)
        return " ".join(f"{word} {_index(number, sides)}" for word, (number, sides) in named if number is not None)

    @property
    def threads(self) -> int:
        """Number of threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    def of(self, *, space: str | None = None, buffer: str | None = None, kinds: tuple[int, ...] = ()) -> np.ndarray:
        """Select the accesses to a memory space or a buffer, of the given kinds (by default all).

        Raises InputError for an unknown buffer.
        """
        names = [one.name for one in self.buffers]
        if buffer is not None and buffer not in names:
            raise InputError(f"{self.kernel} has no such array", got=buffer, help=did_you_mean(buffer, names))
        chosen = [
            (space is None or one.space == space) and (buffer is None or one.name == buffer) for one in self.buffers
        ]
        keep: np.ndarray = np.asarray(chosen, dtype=bool)[self.accesses["buffer"]]
        if kinds:
            keep &= np.isin(self.accesses["kind"], kinds)
        found: np.ndarray = self.accesses[keep]
        return found


def _index(number: int, sides: tuple[int, int, int]) -> int | tuple[int, ...]:
    """Convert a linear index, x fastest, to an index per dimension, without trailing dimensions of length 1."""
    x, y, z = sides
    if y == z == 1:
        return number
    index = (number % x, number // x % y, number // (x * y))
    return index if z > 1 else index[:2]
