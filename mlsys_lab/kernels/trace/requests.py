"""What warps ask of memory at once, against the least that would do, place by place in the source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mlsys_lab.kernels.trace.events import ATOMIC, LOAD, STORE, WARP, Site, Trace
from mlsys_lab.kernels.trace.rows import group_rows, group_sizes, per_row

VERBS = {LOAD: "read", STORE: "write", ATOMIC: "update"}
"""Verb for what threads do, by kind of access."""


@dataclass(frozen=True)
class Request:
    """One request: what the lanes of one warp asked of one array at once."""

    number: int  # an access's `request`
    block: int
    warp: int  # of the block
    who: str  # they are, in words
    lanes: int
    taken: int  # sectors, passes through shared memory, or turns of atomics
    least: int  # of them, for as many bytes


@dataclass(frozen=True)
class Requests:
    """All requests of one kind from one place in the source to one array, summed up."""

    site: Site
    kind: int
    buffer: str
    requests: int
    taken: int
    least: int
    worst: Request  # the first of those that take the most for what they need

    @property
    def efficiency(self) -> float:
        """Least sectors, passes or turns over those taken, in (0, 1]."""
        return self.least / self.taken


def addresses(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Byte at which each row's access starts, from the start that `Buffer.start` counts from."""
    found: np.ndarray = rows["offset"] + per_row(rows, (buffer.start for buffer in trace.buffers))
    return found


def by_site(
    trace: Trace, rows: np.ndarray, starts: np.ndarray, taken: np.ndarray, least: np.ndarray
) -> tuple[Requests, ...]:
    """Sum up requests, which begin at `starts` of `rows`, by place, array and kind, in order of place."""
    heads, lanes = rows[starts], group_sizes(starts, len(rows))
    order, begins = group_rows(heads["site"], heads["buffer"], heads["kind"])
    found = []
    for one in np.split(order, begins[1:]) if len(order) else ():
        head, worst = heads[one[0]], one[np.argmax(taken[one] / least[one])]
        found.append(
            Requests(
                site=trace.sites[head["site"]],
                kind=int(head["kind"]),
                buffer=trace.buffers[head["buffer"]].name,
                requests=len(one),
                taken=int(taken[one].sum()),
                least=int(least[one].sum()),
                worst=Request(
                    number=int(heads[worst]["request"]),
                    block=int(heads[worst]["block"]),
                    warp=int(heads[worst]["thread"]) // WARP,
                    who=f"{trace.name_actor(int(heads[worst]['block']))} warp {int(heads[worst]['thread']) // WARP}",
                    lanes=int(lanes[worst]),
                    taken=int(taken[worst]),
                    least=int(least[worst]),
                ),
            )
        )
    return tuple(sorted(found, key=lambda one: one.site))


def find_worst(places: Iterable[Requests], unit: str) -> tuple[int, str]:
    """Most sectors, passes or turns (`unit`) by which one request exceeds its least, and a sentence about it."""
    worst = max(places, key=lambda one: one.worst.taken - one.worst.least, default=None)
    if worst is None:
        return 0, ""
    request = worst.worst
    asks = f"{request.lanes} lanes of {request.who} {VERBS[worst.kind]} {worst.buffer}"
    said = f"{worst.site}: {asks} in {request.taken} {unit} where {request.least} would do"
    return request.taken - request.least, said


def busiest_block(trace: Trace, space: str) -> tuple[int, str]:
    """Most requests that the warps of one block make to global or shared memory, and a sentence about that block."""
    rows = trace.of(space=space)
    _, first = np.unique(rows["request"], return_index=True)
    counts = np.bincount(rows["block"][first], minlength=1)
    return int(counts.max()), f"the warps of {trace.name_actor(int(counts.argmax()))}"


def busiest_thread(trace: Trace, space: str) -> tuple[int, str]:
    """Most accesses of one thread to global or shared memory, and a sentence about that thread."""
    rows = trace.of(space=space)
    counts = np.bincount(rows["block"].astype(np.int64) * trace.threads + rows["thread"], minlength=1)
    block, thread = divmod(int(counts.argmax()), trace.threads)
    return int(counts.max()), f"thread {thread} of block {block}"
