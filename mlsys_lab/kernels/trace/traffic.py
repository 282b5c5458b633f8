"""Traffic: bytes that a launch reads from and writes to global memory, compared with the minimum.

An atomic reads and writes. At the minimum, an element whose value from before the launch is needed is read once, and an
element that is stored to is written once. Out-of-bounds lanes move bytes too, but touch no element of the array.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.kernels.trace.events import LOAD, STORE, Buffer, Trace
from mlsys_lab.kernels.trace.rows import element_ids, group_rows, in_bounds
from mlsys_lab.kernels.trace.sectors import SECTOR_BYTES, sectors


@dataclass(frozen=True)
class Flow:
    """Bytes moved in one direction between lanes and one or more arrays of global memory; flows can be added."""

    asked_bytes: int  # requested by the lanes, one element each
    moved_bytes: int  # in full sectors, by the warps' requests
    least_bytes: int  # each element that must be moved, once
    buffer_bytes: int  # each element of the array, once

    @property
    def ratio(self) -> float:
        """Requested bytes over the minimum, 1 at best; infinite if the minimum is 0."""
        return _ratio(self.asked_bytes, self.least_bytes)

    @property
    def sector_ratio(self) -> float:
        """Bytes moved in sectors over the fewest full sectors that hold the minimum.

        Also above 1 if rows are not aligned to sectors: neighbouring requests then move a sector twice, which a cache
        would avoid.
        """
        return _ratio(self.moved_bytes, -(-self.least_bytes // SECTOR_BYTES) * SECTOR_BYTES)

    def __add__(self, other: Flow) -> Flow:
        return Flow(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Traffic:
    """Traffic between a launch and one array of global memory, by direction."""

    buffer: str
    elements: int
    read: Flow
    written: Flow
    elements_read: int  # at least once
    elements_written: int
    max_reads: int  # of one element, by how many lanes
    max_writes: int
    mean_reads: float  # of the elements that were read at all
    mean_writes: float

    @property
    def both(self) -> Flow:
        """Sum of reads and writes."""
        return self.read + self.written


def traffic(trace: Trace) -> tuple[Traffic, ...]:
    """Traffic of every array in global memory, untouched arrays included, in the order of the trace's buffers."""
    asked = trace.of(space="global")
    by_request, starts, taken, _ = sectors(trace)
    heads = by_request[starts]
    within = asked[in_bounds(trace, asked)]
    order, starts = group_rows(element_ids(trace, within))
    kinds, first = within["kind"][order], within[order[starts]]
    reads = np.add.reduceat(kinds != STORE, starts, dtype=np.int64)  # of each element touched
    writes = np.add.reduceat(kinds != LOAD, starts, dtype=np.int64)
    needed = first["kind"] != STORE  # its value from before the launch
    found = []
    for index, buffer in enumerate(trace.buffers):
        if buffer.space == "global":
            lanes, requests, mine = (some["buffer"] == index for some in (asked, heads, first))
            once, stored = reads[mine & (reads > 0)], writes[mine & (writes > 0)]
            found.append(
                Traffic(
                    buffer=buffer.name,
                    elements=buffer.elements,
                    read=_flow(buffer, STORE, asked[lanes], heads[requests], taken[requests], int(needed[mine].sum())),
                    written=_flow(buffer, LOAD, asked[lanes], heads[requests], taken[requests], len(stored)),
                    elements_read=len(once),
                    elements_written=len(stored),
                    max_reads=int(once.max(initial=0)),
                    max_writes=int(stored.max(initial=0)),
                    mean_reads=float(once.mean()) if len(once) else 0.0,
                    mean_writes=float(stored.mean()) if len(stored) else 0.0,
                )
            )
    return tuple(found)


def total(trace: Trace) -> Flow:
    """Sum of the traffic of all arrays of global memory, reads and writes together."""
    return sum((one.both for one in traffic(trace)), Flow(0, 0, 0, 0))


def times_read(trace: Trace, name: str) -> np.ndarray:
    """How many lanes read each element, atomics included: an array of the buffer's shape."""
    return _times(trace, name, STORE)


def times_written(trace: Trace, name: str) -> np.ndarray:
    """How many lanes wrote each element, atomics included: an array of the buffer's shape."""
    return _times(trace, name, LOAD)


def writers(trace: Trace, name: str) -> np.ndarray:
    """Index of the block that last wrote each element, -1 if none did: an array of the buffer's shape."""
    buffer, rows = _rows(trace, name, LOAD)
    rows = rows[in_bounds(trace, rows)]
    found = np.full(_span(buffer), -1)
    found[rows["offset"] // buffer.itemsize] = rows["block"]
    return _reshape(found, buffer)


def reads_each_once(trace: Trace, name: str) -> bool:
    """Whether exactly one lane read each element of the array, and nothing outside of it was read."""
    return _each_once(trace, name, STORE)


def writes_each_once(trace: Trace, name: str) -> bool:
    """Whether exactly one lane wrote each element of the array, and nothing outside of it was written."""
    return _each_once(trace, name, LOAD)


def _flow(buffer: Buffer, other: int, asked: np.ndarray, heads: np.ndarray, taken: np.ndarray, elements: int) -> Flow:
    """Traffic in one direction: all accesses except kind `other`, which goes only the other way."""
    return Flow(
        asked_bytes=buffer.itemsize * int((asked["kind"] != other).sum()),
        moved_bytes=SECTOR_BYTES * int(taken[heads["kind"] != other].sum()),
        least_bytes=buffer.itemsize * elements,
        buffer_bytes=buffer.itemsize * buffer.elements,
    )


def _ratio(size_bytes: int, least_bytes: int) -> float:
    if least_bytes:
        return size_bytes / least_bytes
    return float("inf") if size_bytes else 1.0


def _rows(trace: Trace, name: str, other: int) -> tuple[Buffer, np.ndarray]:
    for buffer in trace.buffers:
        if buffer.name == name and buffer.space == "global":
            rows = trace.of(space="global", buffer=name)
            return buffer, rows[rows["kind"] != other]
    known = [buffer.name for buffer in trace.buffers if buffer.space == "global"]
    wanted = f"one of {', '.join(known)}"
    raise InputError("no such array in global memory", got=repr(name), expected=wanted, help=did_you_mean(name, known))


def _times(trace: Trace, name: str, other: int) -> np.ndarray:
    buffer, rows = _rows(trace, name, other)
    index = rows["offset"][in_bounds(trace, rows)] // buffer.itemsize
    return _reshape(np.bincount(index, minlength=_span(buffer)), buffer)


def _span(buffer: Buffer) -> int:
    """Elements from the first to the last in memory, gaps included."""
    return -(-buffer.size_bytes // buffer.itemsize)


def _reshape(values: np.ndarray, buffer: Buffer) -> np.ndarray:
    """Values by position in memory, as an array of the buffer's shape."""
    steps = [values.itemsize * stride // buffer.itemsize for stride in buffer.strides]
    return np.lib.stride_tricks.as_strided(values, buffer.shape, steps).copy()


def _each_once(trace: Trace, name: str, other: int) -> bool:
    _, rows = _rows(trace, name, other)
    return bool(in_bounds(trace, rows).all() and (_times(trace, name, other) == 1).all())
