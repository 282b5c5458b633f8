"""Summary of a trace for the trusted side of a check (`mlsys_checks.trusted.traced`): counts, and problems as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlsys_lab.kernels.trace.barriers import Divergence, divergences
from mlsys_lab.kernels.trace.cells import locate_in_cell
from mlsys_lab.kernels.trace.events import LOAD, STORE, Buffer, Site, Trace
from mlsys_lab.kernels.trace.faults import NOWHERE, UNWRITTEN, Fault, faults
from mlsys_lab.kernels.trace.races import Race, races
from mlsys_lab.kernels.trace.requests import VERBS
from mlsys_lab.kernels.trace.rows import group_rows, per_row
from mlsys_lab.kernels.trace.traffic import times_written

MOVED, BUSIEST, WIDEST, WRONG = "moved", "busiest", "widest", "wrong"
"""Keys of a launch's findings."""
READS, WRITES = "reads", "writes"
"""Keys of an array's traffic."""
BYTES, LINES, ACTOR, NUMBER = "bytes", "lines", "actor", "number"
"""Keys of an amount and its source lines; kind and index of the busiest program or block."""


def findings(trace: Trace, artifact: Any = None, *, actor: str = "program") -> dict[str, Any]:
    """Counts and problems of one launch, as nested dictionaries of numbers and texts.

    `moved`: for every array of global memory its `reads` and `writes`: the `bytes` requested by all lanes (an atomic
    does both), and the source `lines` that request them, the one with most requests first. `busiest`: the kind of
    `actor` ("program" or "block"), the `number` of the one that requests most bytes of global memory, and those
    `bytes`. `widest`: elements of the largest block that was loaded or stored at once. `wrong`: a line for each
    out-of-bounds access, read of uninitialized memory, undefined lane that takes effect, race, divergent barrier, and
    result that is not stored completely.
    `artifact`, a module of exported cells, makes lines refer to cells.
    """
    where = _where(artifact)
    rows = trace.of(space="global")
    sizes = per_row(rows, (buffer.itemsize for buffer in trace.buffers))
    moved: dict[str, dict[str, dict[str, int | str]]] = {}
    for index, buffer in enumerate(trace.buffers):
        if buffer.space == "global":
            ways = moved.setdefault(buffer.name, {})
            for way, other in ((READS, STORE), (WRITES, LOAD)):
                mine = (rows["buffer"] == index) & (rows["kind"] != other)
                found = zip(*np.unique(rows["site"][mine], return_counts=True), strict=True)
                sites = sorted((-count, trace.sites[site]) for site, count in found)
                ways[way] = {BYTES: int(sizes[mine].sum()), LINES: " and ".join(where(site) for _, site in sites)}
    order, starts = group_rows(rows["block"])
    each = np.add.reduceat(sizes[order], starts) if len(starts) else np.zeros(1, dtype=np.int64)
    most = int(np.argmax(each))
    busiest = int(rows["block"][order[starts[most]]]) if len(starts) else 0
    problems = [_fault(fault, where, actor) for fault in faults(trace)]
    problems += [trace.describe_undefined(one, where) for one in trace.undefined]
    problems += [_race(race, where, actor) for race in races(trace) if not race.equal]
    problems += [_divergence(one, where) for one in divergences(trace)]
    problems += [line for buffer in trace.buffers if (line := _find_unwritten(trace, buffer))]
    return {
        MOVED: moved,
        BUSIEST: {ACTOR: actor, NUMBER: busiest, BYTES: int(each[most])},
        WIDEST: trace.threads,
        WRONG: "\n".join(problems),
    }


def _find_unwritten(trace: Trace, buffer: Buffer) -> str:
    """A line about the elements of an output that were never stored to; "" if there are none."""
    if buffer.initialized or buffer.space != "global":
        return ""
    missing = times_written(trace, buffer.name) == 0
    if not missing.any():
        return ""
    places, at = np.argwhere(missing).tolist(), np.flatnonzero(missing)
    in_a_row = 1 < len(at) == at[-1] - at[0] + 1
    which = f"{places[0]} to {places[-1]}" if in_a_row else f"first {places[0]}"
    return f"nothing is ever stored to {len(at):,} of {buffer.elements:,} elements of {buffer.name}, {which}"


def _where(artifact: Any) -> Callable[[Site], str]:
    """A function that formats a source line, by its notebook cell if the kernels come from exported cells."""
    loader = getattr(artifact, "__loader__", None)
    return lambda site: str(locate_in_cell(site, loader))


def _fault(fault: Fault, where: Callable[[Site], str], actor: str) -> str:
    who = f"{actor} {fault.block}" if actor == "program" else f"{actor} {fault.block} thread {fault.thread}"
    does = f"{who} {VERBS[fault.kind]}s {fault.place} of {fault.buffer}"
    if fault.what == UNWRITTEN:
        return f"{where(fault.site)}: {does}, which nothing has written before"
    if fault.what == NOWHERE:
        return f"{where(fault.site)}: {who} {VERBS[fault.kind]}s at an address that no array of the launch has"
    return f"{where(fault.site)}: {does}, {fault.what} of the array"


def _divergence(one: Divergence, where: Callable[[Site], str]) -> str:
    does = "waits" if one.waits else "goes on"
    return f"{where(one.barrier)}: some of {one.where} wait here, {one.who} {does} at {where(one.elsewhere)}"


def _race(race: Race, where: Callable[[Site], str], actor: str) -> str:
    place = where(race.first) if race.first == race.second else f"{where(race.first)} and {where(race.second)}"
    one, other = f"{actor} {race.block}", f"{actor} {race.other_block}"
    why = f"and nothing orders {actor}s"
    if not race.between_blocks:
        one, other = f"{one} lane {race.thread}", f"lane {race.other_thread}"
        why = "with no barrier between"
    does = f"{one} {VERBS[race.first_kind]}s {race.place} of {race.buffer}, {other} {VERBS[race.second_kind]}s it"
    return f"{place}: {does}, {why}{race.describe_lock(where)}"
