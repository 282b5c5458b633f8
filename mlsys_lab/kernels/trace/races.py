"""Data races: unordered accesses to one element, at least one of which changes it.

Two threads of a block are ordered only by a barrier of the block between them or, within a warp, by a `syncwarp` of all
its lanes; without one, the threads of a warp run independently since Volta. Two blocks of a launch are never ordered.
Loads do not race with loads, nor atomics with atomics; an atomic races with a plain access. Lanes of one request that
store to one element race too: one of them wins.

Two accesses under one lock are ordered. Numba's recorder tracks locks itself; in Triton a lock is acquired by a
compare-and-swap that succeeds and released by an exchange in a later phase, since only a barrier ensures that the other
lanes are done. If threads only store one equal value to an element between two barriers, the outcome is deterministic,
and the race is marked `equal`.

Not modelled: other orders that a kernel establishes itself (a `syncwarp` of some lanes, fences with flags). They are
reported as races; if both sides update one word by atomics, the report names that word's line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from mlsys_lab.kernels.trace.events import ACQUIRE, ATOMIC, LOAD, RELEASE, STORE, WARP, Site, Trace
from mlsys_lab.kernels.trace.requests import VERBS
from mlsys_lab.kernels.trace.rows import element_ids, group_rows, group_sizes, in_bounds


@dataclass(frozen=True)
class Race:
    """Two source lines with unordered accesses to the same elements; the first of them changes the elements."""

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
    lock: Site | None = None  # where both update another element by atomics, which may put them in order
    equal: bool = False  # whether all store one value, so that nothing is left to chance

    @property
    def between_blocks(self) -> bool:
        """Whether the two accesses come from different blocks."""
        return self.block != self.other_block

    @property
    def sentence(self) -> str:
        """One line about the race, starting with its source lines."""
        where = f"{self.first}" if self.first == self.second else f"{self.first} and {self.second}"
        why = "and nothing orders them" if self.between_blocks else "with no barrier between"
        what = f"{self.who} {VERBS[self.first_kind]}s {self.place} of {self.buffer}"
        what += f", {self.other_who} {VERBS[self.second_kind]}s it"
        why = "the same value, so the order does not matter" if self.equal else why
        more = f" (and so on for {self.elements} elements)" if self.elements > 1 else ""
        return f"{where}: {what}, {why}{more}{self.describe_lock(str)}"

    def describe_lock(self, where: Callable[[Site], str]) -> str:
        """A clause about a lock that may order the two accesses, its line formatted by `where`; "" if there is none."""
        return f", unless {where(self.lock)} is a lock that does" if self.lock else ""


def races(trace: Trace) -> tuple[Race, ...]:
    """Races between threads of a block, in shared and global memory, then those between blocks, in source order."""
    changed = np.zeros(len(trace.buffers), dtype=bool)
    changed[trace.accesses["buffer"][trace.accesses["kind"] != LOAD]] = True
    rows = trace.accesses[changed[trace.accesses["buffer"]]]
    rows = rows[in_bounds(trace, rows)]
    common = rows[np.asarray([buffer.space == "global" for buffer in trace.buffers], dtype=bool)[rows["buffer"]]]
    cell, warp, turn = element_ids(trace, rows), rows["thread"] // WARP, (rows["block"], rows["phase"])
    of_lanes = _find_pairs(rows, rows["thread"], cell, *turn, warp, rows["sync"])
    of_warps = _find_pairs(rows, warp, cell, *turn)
    common["lock"] = np.maximum(common["lock"], _find_held_locks(trace, common))
    of_blocks = _find_pairs(common, common["block"], element_ids(trace, common))
    within = map(np.concatenate, zip(of_lanes, of_warps, strict=True))
    return _races(trace, *within) + _races(trace, *of_blocks)


def _find_pairs(rows: np.ndarray, actor: np.ndarray, *keys: np.ndarray) -> tuple[np.ndarray, ...]:
    """For each group of rows of equal `keys` in which two actors race, one row, another, and whether it is `equal`."""
    order, starts = group_rows(*keys)
    rows, actor = rows[order], actor[order]
    kinds = np.bitwise_or.reduceat(1 << rows["kind"], starts)
    several = ~_are_equal(actor, starts)
    racy = several & ((kinds & 1 << STORE != 0) | (kinds == (1 << LOAD | 1 << ATOMIC)))
    sizes = group_sizes(starts, len(rows))
    least, most = (of.reduceat(rows["lock"], starts) for of in (np.minimum, np.maximum))
    racy &= (least == 0) | (least != most)
    mixed = racy & (most != 0)
    chosen = np.repeat(racy & ~mixed, sizes)
    ones, others = _pairs(rows[chosen], actor[chosen], sizes[racy & ~mixed])
    value = rows["value"]
    equal = (kinds == 1 << STORE) & _are_equal(value, starts)
    equal = (equal & (value[starts] != 0))[racy & ~mixed]
    around = [_pair_around_locks(rows, actor, at, at + n) for at, n in zip(starts[mixed], sizes[mixed], strict=True)]
    more = np.array([pair for pair in around if pair], dtype=np.int64).reshape(-1, 2)
    return (
        np.concatenate([ones, rows[more[:, 0]]]),
        np.concatenate([others, rows[more[:, 1]]]),
        np.concatenate([equal, np.zeros(len(more), dtype=bool)]),
    )


def _pair_around_locks(rows: np.ndarray, actor: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """Two racing rows that no one lock protects, the one that changes the element first; None if there are none."""
    for i, j in combinations(range(start, end), 2):
        kinds = {int(rows["kind"][i]), int(rows["kind"][j])}
        apart = rows["lock"][i] == 0 or rows["lock"][i] != rows["lock"][j]
        if apart and actor[i] != actor[j] and (STORE in kinds or kinds == {LOAD, ATOMIC}):
            first = STORE if STORE in kinds else ATOMIC
            return (i, j) if rows["kind"][i] == first else (j, i)
    return None


def _are_equal(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Whether all values of a group are equal, for each group."""
    return np.asarray(np.maximum.reduceat(values, starts) == np.minimum.reduceat(values, starts))


def _find_held_locks(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """For each row the lock that its block holds, as one more than the number of the lock's element; 0 for none.

    Rows are in order of requests.
    """
    held = np.zeros(len(rows), dtype=np.int64)
    locks = rows[rows["role"] != 0]
    elements = element_ids(trace, locks) + 1
    for number in np.flatnonzero(locks["role"] == ACQUIRE):
        taken = locks[number]
        after = (locks["request"] > taken["request"]) & (locks["block"] == taken["block"])
        let_go = locks[after & (elements == elements[number]) & (locks["role"] == RELEASE)]
        if len(let_go):
            inside = slice(*np.searchsorted(rows["request"], (taken["request"] + 1, let_go["request"][0])))
            under = (rows["block"][inside] == taken["block"]) & (rows["phase"][inside] < let_go["phase"][0])
            held[inside][under] = elements[number]
    return held


def _races(trace: Trace, ones: np.ndarray, others: np.ndarray, equal: np.ndarray) -> tuple[Race, ...]:
    """Races by place, from pairs of rows; of the pairs for one element of one block and phase the first counts."""
    order, starts = group_rows(element_ids(trace, ones), equal, ones["block"], ones["phase"])
    ones, others, equal = (of[order[starts]] for of in (ones, others, equal))
    places = [np.minimum(ones["site"], others["site"]), np.maximum(ones["site"], others["site"])]
    order, starts = group_rows(*places, ones["buffer"], ones["kind"], others["kind"], equal)
    elements = group_sizes(starts, len(order))
    found = [
        _race(trace, ones[i], others[i], int(n), equal=bool(equal[i]))
        for i, n in zip(order[starts], elements, strict=True)
    ]
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


def _race(trace: Trace, one: np.void, other: np.void, elements: int, *, equal: bool) -> Race:
    buffer = trace.buffers[one["buffer"]]
    return Race(
        buffer=buffer.name,
        first=trace.sites[one["site"]],
        first_kind=int(one["kind"]),
        second=trace.sites[other["site"]],
        second_kind=int(other["kind"]),
        elements=elements,
        place=buffer.describe(int(one["offset"])),
        block=int(one["block"]),
        thread=int(one["thread"]),
        other_block=int(other["block"]),
        other_thread=int(other["thread"]),
        who=trace.describe_actor(int(one["block"]), int(one["thread"])),
        other_who=trace.describe_actor(
            None if other["block"] == one["block"] else int(other["block"]), int(other["thread"])
        ),
        lock=_find_lock(trace, one, other) if trace.unit_names[0] == "program" else None,
        equal=equal,
    )


def _find_lock(trace: Trace, one: np.void, other: np.void) -> Site | None:
    """Where the two actors of a race update by atomics one element that is not the one they race for."""
    rows = trace.accesses[trace.accesses["kind"] == ATOMIC]
    rows = rows[in_bounds(trace, rows)]
    cells = element_ids(trace, rows)
    actor = ["block"] if one["block"] != other["block"] else ["block", "thread"]
    mine, its = (np.logical_and.reduce([rows[field] == row[field] for field in actor]) for row in (one, other))
    apart = (rows["buffer"] != one["buffer"]) | (rows["offset"] != one["offset"])
    both = mine & apart & np.isin(cells, cells[its])
    return trace.sites[rows["site"][both][0]] if both.any() else None
