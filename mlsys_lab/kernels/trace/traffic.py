"""Traffic: the bytes that a launch reads from global memory and writes to it, against the least that would do.

An atomic reads and writes. The least: an element whose value from before the launch is asked for is read once, an
element that is stored to is written once. Lanes outside of an array move bytes as well, but touch no element of it.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.kernels.trace.events import LOAD, STORE, Buffer, Trace
from mlsys_lab.kernels.trace.rows import element_ids, group_rows, is_inside
from mlsys_lab.kernels.trace.sectors import SECTOR_BYTES, sectors


@dataclass(frozen=True)
class Flow:
    """Bytes that went one way between lanes and one array of global memory, or several; flows can be added."""

    asked_bytes: int  # by the lanes, one element each
    moved_bytes: int  # in whole sectors, by the warps' requests
    least_bytes: int  # each element that had to be moved, once
    whole_bytes: int  # each element that there is, once

    @property
    def ratio(self) -> float:
        """Bytes asked for over the least, 1 at best; infinite where nothing need have been asked for."""
        return _ratio(self.asked_bytes, self.least_bytes)

    @property
    def sector_ratio(self) -> float:
        """Bytes moved in sectors over the fewest whole sectors that hold the least.

        Above 1 also where rows do not begin at sectors: neighbouring requests then move a sector twice, which a cache
        would spare them.
        """
        return _ratio(self.moved_bytes, -(-self.least_bytes // SECTOR_BYTES) * SECTOR_BYTES)

    def __add__(self, other: Flow) -> Flow:
        return Flow(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Traffic:
    """Bytes that a launch and one array of global memory exchanged, by direction."""

    buffer: str
    elements: int
    read: Flow
    written: Flow
    elements_read: int  # at least once
    elements_written: int
    most_reads: int  # of one element, by how many lanes
    most_writes: int
    mean_reads: float  # of the elements that were read at all
    mean_writes: float

    @property
    def both(self) -> Flow:
        """Reads and writes added up."""
        return self.read + self.written


def traffic(trace: Trace) -> tuple[Traffic, ...]:
    """Traffic of every array in global memory, untouched ones too, in the order of the trace's buffers."""
    asked = trace.of(space="global")
    by_request, starts, taken, _ = sectors(trace)
    heads = by_request[starts]
    within = asked[is_inside(trace, asked)]
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
                    most_reads=int(once.max(initial=0)),
                    most_writes=int(stored.max(initial=0)),
                    mean_reads=float(once.mean()) if len(once) else 0.0,
                    mean_writes=float(stored.mean()) if len(stored) else 0.0,
                )
            )
    return tuple(found)


def total(trace: Trace) -> Flow:
    """Sum of the traffic of all arrays of global memory, reads and writes together."""
    return sum((one.both for one in traffic(trace)), Flow(0, 0, 0, 0))


def times_read(trace: Trace, name: str) -> np.ndarray:
    """How many lanes read each element of the array, atomics counted: an array of its shape."""
    return _times(trace, name, STORE)


def times_written(trace: Trace, name: str) -> np.ndarray:
    """How many lanes wrote each element of the array, atomics counted: an array of its shape."""
    return _times(trace, name, LOAD)


def writers(trace: Trace, name: str) -> np.ndarray:
    """The block that wrote each element of the array last, -1 where none did: an array of its shape."""
    buffer, rows = _rows(trace, name, LOAD)
    rows = rows[is_inside(trace, rows)]
    found = np.full(_places(buffer), -1)
    found[rows["offset"] // buffer.itemsize] = rows["block"]
    return _laid_out(found, buffer)


def reads_each_once(trace: Trace, name: str) -> bool:
    """Whether exactly one lane read each element of the array, and nothing outside of it was read."""
    return _each_once(trace, name, STORE)


def writes_each_once(trace: Trace, name: str) -> bool:
    """Whether exactly one lane wrote each element of the array, and nothing outside of it was written."""
    return _each_once(trace, name, LOAD)


def _flow(buffer: Buffer, other: int, asked: np.ndarray, heads: np.ndarray, taken: np.ndarray, elements: int) -> Flow:
    """Traffic in one direction: all accesses but those of kind `other`, which only go the other way."""
    return Flow(
        asked_bytes=buffer.itemsize * int((asked["kind"] != other).sum()),
        moved_bytes=SECTOR_BYTES * int(taken[heads["kind"] != other].sum()),
        least_bytes=buffer.itemsize * elements,
        whole_bytes=buffer.itemsize * buffer.elements,
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
    index = rows["offset"][is_inside(trace, rows)] // buffer.itemsize
    return _laid_out(np.bincount(index, minlength=_places(buffer)), buffer)


def _places(buffer: Buffer) -> int:
    """Numbers from the first element to the last, gaps counted."""
    return -(-buffer.size_bytes // buffer.itemsize)


def _laid_out(values: np.ndarray, buffer: Buffer) -> np.ndarray:
    """One value for each place in an array's memory, as an array of its shape."""
    steps = [values.itemsize * stride // buffer.itemsize for stride in buffer.strides]
    return np.lib.stride_tricks.as_strided(values, buffer.shape, steps).copy()


def _each_once(trace: Trace, name: str, other: int) -> bool:
    _, rows = _rows(trace, name, other)
    return bool(is_inside(trace, rows).all() and (_times(trace, name, other) == 1).all())
