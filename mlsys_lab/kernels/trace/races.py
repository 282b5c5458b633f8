"""Races: accesses to one element in no fixed order, one of which changes it, so that the outcome is left to chance.

Two threads of a block are in order only if a barrier of the block lies between, or in one warp a `syncwarp` of all its
lanes; without one the threads of a warp run independently since Volta. Two blocks of a launch are never in order. Loads
do not race with loads nor atomics with atomics; an atomic races with a plain access. Lanes of one request that store to
one element race too: one of them wins.

Two exceptions. Where all accesses to an element are stores of one equal value, any order leaves the same, so this is
repeated work and no race. And accesses under one lock are in order: a lock is taken by a compare-and-swap that
succeeds and let go by an exchange in a later phase, since only a barrier makes sure that the other lanes are done.

Left out: other orders that a kernel makes itself (a `syncwarp` of some lanes, fences with flags), which are reported
although they hold, where both sides update one word by atomics with that word's line. Where the recorder keeps neither
values nor compare-and-swaps (Numba's and CUDA C++'s), the exceptions do not apply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mlsys_lab.kernels.trace.events import ATOMIC, LET_GO, LOAD, STORE, TAKE, WARP, Site, Trace
from mlsys_lab.kernels.trace.requests import VERBS
from mlsys_lab.kernels.trace.rows import element_ids, group_rows, group_sizes, is_inside


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
    lock: Site | None  # where both update another element by atomics, which may put them in order

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
        return f"{where}: {what}, {why}{more}{self.describe_lock(str)}"

    def describe_lock(self, where: Callable[[Site], str]) -> str:
        """The words on what may put the two in order after all, its place told by `where`; "" if nothing may."""
        return f", unless {where(self.lock)} is a lock that does" if self.lock else ""


def races(trace: Trace) -> tuple[Race, ...]:
    """Races between threads of a block, in shared and global memory, then those between blocks, by place."""
    changed = np.zeros(len(trace.buffers), dtype=bool)
    changed[trace.accesses["buffer"][trace.accesses["kind"] != LOAD]] = True
    rows = trace.accesses[changed[trace.accesses["buffer"]]]
    rows = rows[is_inside(trace, rows)]
    common = rows[np.asarray([buffer.space == "global" for buffer in trace.buffers], dtype=bool)[rows["buffer"]]]
    cell, warp, turn = element_ids(trace, rows), rows["thread"] // WARP, (rows["block"], rows["phase"])
    of_lanes = _find_pairs(rows, rows["thread"], cell, *turn, warp, rows["sync"])
    of_warps = _find_pairs(rows, warp, cell, *turn)
    of_blocks = _find_pairs(common, common["block"], element_ids(trace, common), held=_find_held_locks(trace, common))
    return _races(trace, *map(np.concatenate, zip(of_lanes, of_warps, strict=True))) + _races(trace, *of_blocks)


def _find_pairs(
    rows: np.ndarray, actor: np.ndarray, *keys: np.ndarray, held: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """For each group of rows of equal `keys` in which two actors race, one row and another that races with it.

    `held` is the number of the lock that each row's actor holds, 0 for none.
    """
    order, starts = group_rows(*keys)
    rows, actor = rows[order], actor[order]
    kinds = np.bitwise_or.reduceat(1 << rows["kind"], starts)
    several = ~_are_equal(actor, starts)
    racy = several & ((kinds & 1 << STORE != 0) | (kinds == (1 << LOAD | 1 << ATOMIC)))
    racy &= ~((kinds == 1 << STORE) & (rows["value"][starts] != 0) & _are_equal(rows["value"], starts))
    if held is not None:
        racy &= ~((held[order][starts] != 0) & _are_equal(held[order], starts))
    sizes = group_sizes(starts, len(rows))
    chosen = np.repeat(racy, sizes)
    return _pairs(rows[chosen], actor[chosen], sizes[racy])


def _are_equal(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Whether all values of a group are equal, for each group."""
    return np.asarray(np.maximum.reduceat(values, starts) == np.minimum.reduceat(values, starts))


def _find_held_locks(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """For each row the lock that its block holds, as one more than the number of the lock's element; 0 for none.

    Rows are in order of requests.
    """
    held = np.zeros(len(rows), dtype=np.int64)
    locks = rows[rows["lock"] != 0]
    elements = element_ids(trace, locks) + 1
    for number in np.flatnonzero(locks["lock"] == TAKE):
        taken = locks[number]
        after = (locks["request"] > taken["request"]) & (locks["block"] == taken["block"])
        let_go = locks[after & (elements == elements[number]) & (locks["lock"] == LET_GO)]
        if len(let_go):
            inside = slice(*np.searchsorted(rows["request"], (taken["request"] + 1, let_go["request"][0])))
            under = (rows["block"][inside] == taken["block"]) & (rows["phase"][inside] < let_go["phase"][0])
            held[inside][under] = elements[number]
    return held


def _races(trace: Trace, ones: np.ndarray, others: np.ndarray) -> tuple[Race, ...]:
    """Races by place, from pairs of rows; of the pairs for one element of one block and phase the first counts."""
    order, starts = group_rows(element_ids(trace, ones), ones["block"], ones["phase"])
    ones, others = ones[order[starts]], others[order[starts]]
    places = [np.minimum(ones["site"], others["site"]), np.maximum(ones["site"], others["site"])]
    order, starts = group_rows(*places, ones["buffer"], ones["kind"], others["kind"])
    elements = group_sizes(starts, len(order))
    found = [_race(trace, ones[i], others[i], int(n)) for i, n in zip(order[starts], elements, strict=True)]
    return tuple(sorted(found, key=lambda race: (race.first, race.second)))


def _pairs(rows: np.ndarray, who: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each group of racing rows, one that changes the element and one of another actor that races with it."""
    kind, starts = rows["kind"], np.cumsum(sizes) - sizes
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
        who=trace.name_actor(int(one["block"]), int(one["thread"])),
        other_who=trace.name_actor(
            None if other["block"] == one["block"] else int(other["block"]), int(other["thread"])
        ),
        lock=_find_lock(trace, one, other),
    )


def _find_lock(trace: Trace, one: np.void, other: np.void) -> Site | None:
    """Where the two actors of a race update by atomics one element that is not the one they race for."""
    rows = trace.accesses[trace.accesses["kind"] == ATOMIC]
    rows = rows[is_inside(trace, rows)]
    cells = element_ids(trace, rows)
    actor = ["block"] if one["block"] != other["block"] else ["block", "thread"]
    mine, its = (np.logical_and.reduce([rows[field] == row[field] for field in actor]) for row in (one, other))
    apart = (rows["buffer"] != one["buffer"]) | (rows["offset"] != one["offset"])
    both = mine & apart & np.isin(cells, cells[its])
    return trace.sites[rows["site"][both][0]] if both.any() else None
