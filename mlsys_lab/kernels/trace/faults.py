"""Faults: out-of-bounds accesses and reads of uninitialized memory.

Requests are ordered by number, and the lanes of one request act at once. Without a barrier between threads their order
is the simulator's choice; a result that depends on it is a race (`races`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlsys_lab.kernels.trace.events import LOAD, STORE, Site, Trace
from mlsys_lab.kernels.trace.requests import VERBS
from mlsys_lab.kernels.trace.rows import element_ids, group_rows, in_bounds

BEFORE, BEYOND, UNWRITTEN = "before the start", "beyond the end", "never written"
NOWHERE = "nowhere near an array"
FAR_BYTES = 1 << 39
"""No index reaches this far: the address does not come from an array (it was loaded from memory, for example)."""


@dataclass(frozen=True)
class Fault:
    """Faulty accesses of threads to one array at one source line."""

    what: str  # BEFORE, BEYOND, UNWRITTEN or NOWHERE
    site: Site
    kind: int
    buffer: str
    accesses: int  # that are wrong
    threads: int  # that make them
    of_threads: int  # that touch the array here
    block: int  # of the first one
    thread: int
    who: str  # it is, in words
    noun: str  # for threads
    place: str  # the element that it touches

    @property
    def sentence(self) -> str:
        """One line about the fault, starting with its source line."""
        where = f"{self.what} of {self.buffer}"
        if self.what == UNWRITTEN:
            where = f"{self.buffer} where nothing was written before"
        many = f"{self.threads} of {self.of_threads} {self.noun}s"
        if self.what == NOWHERE:
            verb = VERBS[self.kind]
            return f"{self.site}: {many} {verb} at an address that no array of the launch has (first: {self.who})"
        return f"{self.site}: {many} {VERBS[self.kind]} {where} (first: {self.who}, {self.place})"


def faults(trace: Trace) -> tuple[Fault, ...]:
    """Every out-of-bounds access and every read of uninitialized memory, in source order."""
    rows = trace.accesses
    within = in_bounds(trace, rows)
    before = ~within & (rows["offset"] < 0)
    early = np.zeros(len(rows), dtype=bool)
    early[within] = _find_early_reads(trace, rows[within])
    far = ~within & (np.abs(rows["offset"]) >= FAR_BYTES)
    wrong = {BEFORE: before & ~far, BEYOND: ~within & ~before & ~far, NOWHERE: far, UNWRITTEN: early}
    found = [fault for what, which in wrong.items() for fault in _by_site(trace, what, which)]
    return tuple(sorted(found, key=lambda fault: fault.site))


def _find_early_reads(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Mask of the rows that read an element which neither the host nor an earlier request has written."""
    early = np.zeros(len(rows), dtype=bool)
    empty = np.asarray([not buffer.initialized for buffer in trace.buffers], dtype=bool)[rows["buffer"]]
    rows = rows[empty]
    order, starts = group_rows(element_ids(trace, rows))
    kind, request = rows["kind"][order], rows["request"][order]
    writing = np.where(kind != LOAD, request, np.iinfo(np.int64).max)
    first = np.repeat(np.minimum.reduceat(writing, starts), np.diff(starts, append=len(rows)))
    too_early = np.zeros(len(rows), dtype=bool)
    too_early[order] = (kind != STORE) & (request <= first)
    early[empty] = too_early
    return early


def _by_site(trace: Trace, what: str, which: np.ndarray) -> list[Fault]:
    rows = trace.accesses[which]
    order, starts = group_rows(rows["site"], rows["buffer"], rows["kind"])
    found = []
    for one in np.split(order, starts[1:]) if len(order) else ():
        first = rows[one[0]]
        buffer = trace.buffers[first["buffer"]]
        here = [trace.accesses[field] == first[field] for field in ("site", "buffer", "kind")]
        found.append(
            Fault(
                what=what,
                site=trace.sites[first["site"]],
                kind=int(first["kind"]),
                buffer=buffer.name,
                accesses=len(one),
                threads=_threads(rows[one]),
                of_threads=_threads(trace.accesses[np.logical_and.reduce(here)]),
                block=int(first["block"]),
                thread=int(first["thread"]),
                who=trace.describe_actor(int(first["block"]), int(first["thread"])),
                noun=trace.unit_names[1],
                place=buffer.describe(int(first["offset"])),
            )
        )
    return found


def _threads(rows: np.ndarray) -> int:
    """Number of distinct threads among the rows."""
    return len(group_rows(rows["block"], rows["thread"])[1])
