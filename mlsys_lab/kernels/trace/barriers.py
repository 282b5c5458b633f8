"""Barrier divergence: barriers that not all threads of a block reach.

A barrier waits for the threads of the block that have not ended (CUDA C++ Programming Guide on Volta's independent
thread scheduling; PTX on `exit`, which releases a barrier that only ending threads hold up). So a thread may return
early and the kernel still run. But a barrier in a branch that some threads take and others do not is forbidden (the
same guide, on `__syncthreads`).

A trace shows which threads arrived and what the other threads accessed until the barrier completed. A thread that did
not arrive counts as returned, unless it accessed memory at a line more often than every thread that arrived: then it
continued without the barrier. A thread that passes a barrier and accesses nothing afterwards is found only by
`missed`, next to threads that have returned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mlsys_lab.kernels.trace.events import Site, Trace
from mlsys_lab.kernels.trace.rows import group_rows, group_sizes


@dataclass(frozen=True)
class Divergence:
    """Some threads of a block wait at a barrier that other threads of the block do not reach."""

    barrier: Site
    elsewhere: Site  # what the others do: wait at another barrier, or touch memory
    waits: bool  # whether they wait
    block: int  # the first in which it happens
    phase: int
    threads: int  # of it that come to the barrier
    others: int
    thread: int  # the first of the others
    blocks: int  # in which it happens
    where: str  # the block, in words
    who: str  # and the thread

    @property
    def sentence(self) -> str:
        """One line about the divergence, starting with its source line."""
        wait, does = "waits" if self.threads == 1 else "wait", "waits" if self.waits else "goes on"
        here = f"{_number(self.threads, 'thread')} of {self.where} {wait} here, {self.who} {does} at"
        return f"{self.barrier}: {here} {self.elsewhere} ({self.others} in this block, {_number(self.blocks, 'block')})"


def divergences(trace: Trace) -> tuple[Divergence, ...]:
    """Barriers that some threads of a block reach while others wait elsewhere or continue, in source order."""
    arrivals, accesses = trace.arrivals, trace.accesses
    phases = 1 + max(int(some["phase"].max(initial=0)) for some in (arrivals, accesses))
    turn = _turn(arrivals, phases)
    order, starts = group_rows(turn, arrivals["site"])
    heads, sizes = arrivals[order[starts]], group_sizes(starts, len(arrivals))
    waiting: dict[int, tuple[int, int]] = {}  # where the first threads of a turn wait, and how many
    found: dict[tuple[int, int, bool], list[Divergence]] = {}

    def note(turn: int, site: int, thread: int, others: int, *, waits: bool) -> None:
        barrier, threads = waiting[turn]
        block, phase = divmod(turn, phases)
        places = trace.sites[barrier], trace.sites[site]
        where, who = trace.describe_actor(block), trace.describe_actor(thread=thread)
        one = Divergence(*places, waits, block, phase, threads, others, thread, 1, where, who)
        found.setdefault((barrier, site, waits), []).append(one)

    for turn_, head, size in zip(turn[order[starts]].tolist(), heads, sizes.tolist(), strict=True):
        if turn_ in waiting:
            note(turn_, int(head["site"]), int(head["thread"]), size, waits=True)
        else:
            waiting[turn_] = (int(head["site"]), size)
    for turn_, site, thread, others in _find_runaways(arrivals, accesses, phases):
        note(turn_, site, thread, others, waits=False)
    merged = [replace(same[0], blocks=len({one.block for one in same})) for same in found.values()]
    return tuple(sorted(merged, key=lambda one: (one.barrier, one.elsewhere)))


def missed(trace: Trace) -> tuple[str, ...]:
    """A line for each barrier that some threads of a block reach and others do not, returned threads included.

    Stricter than `divergences`: it finds everything forbidden, and some kernels that do run.
    """
    order, starts = group_rows(*(trace.arrivals[field] for field in ("site", "block", "phase", "thread")))
    heads = trace.arrivals[order[starts]]
    order, turns = group_rows(*(heads[field] for field in ("site", "block", "phase")))
    sentences: dict[int, str] = {}
    for turn, number in zip(heads[order[turns]], group_sizes(turns, len(heads)).tolist(), strict=True):
        if number < trace.threads:
            where = trace.describe_actor(int(turn["block"]))
            said = f"{trace.sites[turn['site']]}: {number} of {trace.threads} threads of {where} reach this barrier"
            sentences.setdefault(int(turn["site"]), said)
    return tuple(sentences.values())


def _turn(rows: np.ndarray, phases: int) -> np.ndarray:
    """Number that identifies a row's block and phase."""
    found: np.ndarray = rows["block"].astype(np.int64) * phases + rows["phase"]
    return found


def _find_runaways(arrivals: np.ndarray, accesses: np.ndarray, phases: int) -> list[tuple[int, int, int, int]]:
    """Turn, place, first thread and number of the threads that touched memory there in place of waiting."""
    threads = 1 + max(int(some["thread"].max(initial=0)) for some in (arrivals, accesses))
    came = np.unique(_turn(arrivals, phases) * threads + arrivals["thread"])
    turn = _turn(accesses, phases)
    missing = np.isin(turn, came // threads) & ~np.isin(turn * threads + accesses["thread"], came)
    if not missing.any():
        return []
    some = np.isin(turn, turn[missing])  # turns in which a thread is missing
    rows, turn, missing = accesses[some], turn[some], missing[some]
    order, starts = group_rows(turn, rows["site"], rows["thread"])
    times, heads = group_sizes(starts, len(rows)), order[starts]
    turn, site, missing, first = turn[heads], rows["site"][heads], missing[heads], rows["request"][heads]
    thread = rows["thread"][heads]
    _, places = group_rows(turn, site)
    most = np.maximum.reduceat(np.where(missing, 0, times), places)
    gone = times > np.repeat(most, group_sizes(places, len(times)))
    turn, site, thread, first = (some[gone] for some in (turn, site, thread, first))
    # Each thread counts at the place that it came to first.
    order, _ = group_rows(turn, thread, first)
    _, ahead = group_rows(turn[order], thread[order])
    turn, site, thread = (some[order][ahead] for some in (turn, site, thread))
    order, starts = group_rows(turn, site)
    heads, sizes = order[starts], group_sizes(starts, len(order))
    return list(zip(turn[heads].tolist(), site[heads].tolist(), thread[heads].tolist(), sizes.tolist(), strict=True))


def _number(amount: int, what: str) -> str:
    return f"{amount} {what}" + ("" if amount == 1 else "s")
