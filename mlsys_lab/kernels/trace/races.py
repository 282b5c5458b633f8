"""Races: accesses to one element in no fixed order, one of which changes it, so that the outcome is left to chance.

Two threads of a block are in order only if a barrier of the block lies between, also in one warp, whose threads run
independently since Volta. Two blocks of a launch are never in order. Loads do not race with loads nor atomics with
atomics; an atomic races with a plain access. Lanes of one request that store to one element race too: one of them wins.

Left out: orders that a kernel makes itself (`syncwarp`, fences with flags, locks), which are reported although they
hold; and that two threads may store the same value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlsys_lab.kernels.trace.events import ATOMIC, LOAD, STORE, Site, Trace
from mlsys_lab.kernels.trace.requests import VERBS
from mlsys_lab.kernels.trace.rows import cells, counted, grouped, inside


@dataclass(frozen=True)
class Race:
    """Two places in the source that touch common elements in no order; the first of them changes the elements."""

    buffer: str
    first: Site
    first_kind: int
    second: Site
    second_kind: int
    elements: int  # counted once for each block and phase where threads of a block race
    place: str  # of the first such element
    block: int  # that touches it at the first place
    thread: int
    other_block: int  # and at the second
    other_thread: int
    who: str  # the two are, in words
    other_who: str

    @property
    def between_blocks(self) -> bool:
        """Whether the two accesses come from different blocks."""
        return self.block != self.other_block

    @property
    def sentence(self) -> str:
        """One line about the race, which begins with the lines of source."""
        where = f"{self.first}" if self.first == self.second else f"{self.first} and {self.second}"
        why = "and nothing orders them" if self.between_blocks else "with no barrier between"
        what = f"{self.who} {VERBS[self.first_kind]}s {self.place} of {self.buffer}"
        what += f", {self.other_who} {VERBS[self.second_kind]}s it"
        more = f" (and so on for {self.elements} elements)" if self.elements > 1 else ""
        return f"{where}: {what}, {why}{more}"


def races(trace: Trace) -> tuple[Race, ...]:
    """Races between threads of a block, in shared and global memory, then those between blocks, by place."""
    changed = np.zeros(len(trace.buffers), dtype=bool)
    changed[trace.accesses["buffer"][trace.accesses["kind"] != LOAD]] = True
    rows = trace.accesses[changed[trace.accesses["buffer"]]]
    rows = rows[inside(trace, rows)]
    cell = cells(trace, rows)
    common = np.asarray([buffer.space == "global" for buffer in trace.buffers], dtype=bool)[rows["buffer"]]
    of_threads = _races(trace, rows, "thread", cell, rows["block"], rows["phase"])
    return of_threads + _races(trace, rows[common], "block", cell[common])


def _races(trace: Trace, rows: np.ndarray, actor: str, *keys: np.ndarray) -> tuple[Race, ...]:
    """Races between rows of equal `keys` that differ in the field `actor`."""
    order, starts = grouped(*keys)
    rows = rows[order]
    kinds = np.bitwise_or.reduceat(1 << rows["kind"], starts)
    several = np.maximum.reduceat(rows[actor], starts) != np.minimum.reduceat(rows[actor], starts)
    racy = several & ((kinds & 1 << STORE != 0) | (kinds == (1 << LOAD | 1 << ATOMIC)))
    sizes = counted(starts, len(rows))
    rows, sizes = rows[np.repeat(racy, sizes)], sizes[racy]
    ones, others = _pairs(rows, sizes, actor)
    places = [np.minimum(ones["site"], others["site"]), np.maximum(ones["site"], others["site"])]
    order, starts = grouped(*places, ones["buffer"], ones["kind"], others["kind"])
    elements = counted(starts, len(order))
    found = [_race(trace, ones[i], others[i], int(n)) for i, n in zip(order[starts], elements, strict=True)]
    return tuple(sorted(found, key=lambda race: (race.first, race.second)))


def _pairs(rows: np.ndarray, sizes: np.ndarray, actor: str) -> tuple[np.ndarray, np.ndarray]:
    """For each group of racing rows, one that changes the element and one of another actor that races with it."""
    kind, who, starts = rows["kind"], rows[actor], np.cumsum(sizes) - sizes
    store, atomic, load = (_first(kind == of, starts) for of in (STORE, ATOMIC, LOAD))
    one = np.where(store < len(rows), store, atomic)
    elsewhere = who != np.repeat(who[one], sizes)
    # A store races with everything, an atomic with loads.
    other = _first(elsewhere & (np.repeat(kind[one] == STORE, sizes) | (kind == LOAD)), starts)
    # All loads by the thread of the first atomic: then an atomic of another thread races with them.
    alone = other == len(rows)
    one = np.where(alone, _first(elsewhere & (kind == ATOMIC), starts), one)
    return rows[one], rows[np.where(alone, load, other)]


def _first(which: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """For each group, the first of its rows for which `which` holds, or else the number of all rows."""
    found: np.ndarray = np.minimum.reduceat(np.where(which, np.arange(len(which)), len(which)), starts)
    return found


def _race(trace: Trace, one: np.void, other: np.void, elements: int) -> Race:
    buffer = trace.buffers[one["buffer"]]
    return Race(
        buffer=buffer.name,
        first=trace.sites[one["site"]],
        first_kind=int(one["kind"]),
        second=trace.sites[other["site"]],
        second_kind=int(other["kind"]),
        elements=elements,
        place=buffer.place(int(one["offset"])),
        block=int(one["block"]),
        thread=int(one["thread"]),
        other_block=int(other["block"]),
        other_thread=int(other["thread"]),
        who=trace.who(int(one["block"]), int(one["thread"])),
        other_who=trace.who(None if other["block"] == one["block"] else int(other["block"]), int(other["thread"])),
    )
