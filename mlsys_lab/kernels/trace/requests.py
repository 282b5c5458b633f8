"""Memory requests of warps compared with the ideal, summed up by source line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mlsys_lab.kernels.trace.events import ATOMIC, LOAD, STORE, WARP, Site, Trace
from mlsys_lab.kernels.trace.rows import group_rows, group_sizes, per_row

VERBS = {LOAD: "read", STORE: "write", ATOMIC: "update"}
"""Verb for each kind of access."""


@dataclass(frozen=True)
class Request:
    """One request: a simultaneous access of a warp's lanes to one array."""

    number: int  # an access's `request`
    block: int
    warp: int  # of the block
    who: str  # the warp, in words
    lanes: int
    taken: int  # sectors, passes through shared memory, or turns of atomics
    ideal: int  # of them, for as many bytes


@dataclass(frozen=True)
class Requests:
    """All requests of one kind from one source line to one array, summed up."""

    site: Site
    kind: int
    buffer: str
    requests: int
    taken: int
    ideal: int
    worst: Request  # the first one with the largest ratio of taken to ideal

    @property
    def efficiency(self) -> float:
        """Ideal number of sectors, passes or turns over the number taken, in (0, 1]."""
        return self.ideal / self.taken


def addresses(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Byte address at which each row's access starts, from the origin of `Buffer.start`."""
    found: np.ndarray = rows["offset"] + per_row(rows, (buffer.start for buffer in trace.buffers))
    return found


def by_site(
    trace: Trace, rows: np.ndarray, starts: np.ndarray, taken: np.ndarray, ideal: np.ndarray
) -> tuple[Requests, ...]:
    """Sum up requests, which begin at `starts` of `rows`, by source line, array and kind, in source order."""
    heads, lanes = rows[starts], group_sizes(starts, len(rows))
    order, begins = group_rows(heads["site"], heads["buffer"], heads["kind"])
    found = []
    for one in np.split(order, begins[1:]) if len(order) else ():
        head, worst = heads[one[0]], one[np.argmax(taken[one] / ideal[one])]
        worst_block, worst_warp = int(heads[worst]["block"]), int(heads[worst]["thread"]) // WARP
        found.append(
            Requests(
                site=trace.sites[head["site"]],
                kind=int(head["kind"]),
                buffer=trace.buffers[head["buffer"]].name,
                requests=len(one),
                taken=int(taken[one].sum()),
                ideal=int(ideal[one].sum()),
                worst=Request(
                    number=int(heads[worst]["request"]),
                    block=worst_block,
                    warp=worst_warp,
                    who=f"{trace.describe_actor(worst_block)} warp {worst_warp}",
                    lanes=int(lanes[worst]),
                    taken=int(taken[worst]),
                    ideal=int(ideal[worst]),
                ),
            )
        )
    return tuple(sorted(found, key=lambda one: one.site))


def find_worst(places: Iterable[Requests], unit: str) -> tuple[int, str]:
    """Largest excess of sectors, passes or turns (`unit`) of a request over its ideal, and a sentence about it."""
    worst = max(places, key=lambda one: one.worst.taken - one.worst.ideal, default=None)
    if worst is None:
        return 0, ""
    request = worst.worst
    asks = f"{request.lanes} lanes of {request.who} {VERBS[worst.kind]} {worst.buffer}"
    said = f"{worst.site}: {asks} in {request.taken} {unit} where {request.ideal} would do"
    return request.taken - request.ideal, said


def busiest_block(trace: Trace, space: str) -> tuple[int, str]:
    """Largest number of requests by one block to global or shared memory, and a phrase naming the block."""
    rows = trace.of(space=space)
    _, first = np.unique(rows["request"], return_index=True)
    counts = np.bincount(rows["block"][first], minlength=1)
    return int(counts.max()), f"the warps of {trace.describe_actor(int(counts.argmax()))}"


def busiest_thread(trace: Trace, space: str) -> tuple[int, str]:
    """Largest number of accesses by one thread to global or shared memory, and a phrase naming the thread."""
    rows = trace.of(space=space)
    counts = np.bincount(rows["block"].astype(np.int64) * trace.threads + rows["thread"], minlength=1)
    block, thread = divmod(int(counts.argmax()), trace.threads)
    return int(counts.max()), f"thread {thread} of block {block}"
