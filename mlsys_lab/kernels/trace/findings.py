"""What a check takes from a trace to whoever decides: counts, and what is wrong as text, by names that say what it is.

An array's name is the kernel's with what was counted: "softmax_kernel reads x_ptr" holds bytes. Text crosses as bytes.
`mlsys_lab.checks.traced` reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlsys_lab.kernels.trace.barriers import Divergence, divergences
from mlsys_lab.kernels.trace.events import LOAD, STORE, Buffer, Site, Trace
from mlsys_lab.kernels.trace.faults import UNWRITTEN, Fault, faults
from mlsys_lab.kernels.trace.places import locate_in_cell
from mlsys_lab.kernels.trace.races import Race, races
from mlsys_lab.kernels.trace.requests import VERBS
from mlsys_lab.kernels.trace.rows import group_rows, per_row
from mlsys_lab.kernels.trace.traffic import times_written

READS, WRITES = "reads", "writes"
WRONG, BUSIEST, WIDEST = "is wrong", "busiest", "widest"


def findings(trace: Trace, artifact: Any = None, *, actor: str = "program") -> dict[str, np.ndarray]:
    """Counts and faults of one launch, as arrays.

    With the kernel's name before each, for every array of global memory: `reads ARRAY` and `writes ARRAY`, bytes asked
    for by all lanes (an atomic does both), and the same with `at`, the source lines that do it. Then `busiest program`
    (or `block`: `actor`), the number of the one that asks for most bytes of global memory, and those bytes; `widest`,
    the elements of the largest block that was loaded or stored at once; `is wrong`, a line for each access out of
    bounds, read of what nothing has written, race, barrier in a branch, and result that is not stored everywhere.
    `artifact`, a module of exported cells, lets lines be told by cells.
    """
    where = _where(artifact)
    rows = trace.of(space="global")
    sizes = per_row(rows, (buffer.itemsize for buffer in trace.buffers))
    found: dict[str, np.ndarray] = {}
    for index, buffer in enumerate(trace.buffers):
        if buffer.space == "global":
            for what, other in ((READS, STORE), (WRITES, LOAD)):
                mine = (rows["buffer"] == index) & (rows["kind"] != other)
                sites = sorted(trace.sites[site] for site in np.unique(rows["site"][mine]))
                found[f"{what} {buffer.name}"] = np.array(int(sizes[mine].sum()))
                found[f"{what} {buffer.name} at"] = as_text(" and ".join(where(site) for site in sites))
    order, starts = group_rows(rows["block"])
    each = np.add.reduceat(sizes[order], starts) if len(starts) else np.zeros(1, dtype=np.int64)
    most = int(np.argmax(each))
    busiest = int(rows["block"][order[starts[most]]]) if len(starts) else 0
    found[f"{BUSIEST} {actor}"] = np.array([busiest, int(each[most])])
    found[WIDEST] = np.array(trace.threads)
    told = [_fault(fault, where, actor) for fault in faults(trace)]
    told += [_race(race, where, actor) for race in races(trace)]
    told += [_divergence(one, where) for one in divergences(trace)]
    told += [line for buffer in trace.buffers if (line := _find_unwritten(trace, buffer))]
    found[WRONG] = as_text("\n".join(told))
    return {f"{trace.kernel} {name}": array for name, array in found.items()}


def _find_unwritten(trace: Trace, buffer: Buffer) -> str:
    """A line about the elements of a result that nothing was ever written to; "" if there are none."""
    if buffer.written or buffer.space != "global":
        return ""
    missing = np.argwhere(times_written(trace, buffer.name) == 0)
    if not len(missing):
        return ""
    first = ", ".join(map(str, missing[0].tolist()))
    return (
        f"nothing is ever stored to {len(missing):,} of {buffer.elements:,} elements of {buffer.name}, first [{first}]"
    )


def as_text(said: str) -> np.ndarray:
    """Text as the bytes in which it crosses."""
    return np.frombuffer(said.encode(), np.uint8).copy()


def text_of(letters: np.ndarray) -> str:
    """The text that crossed as bytes."""
    return letters.tobytes().decode(errors="replace")


def _where(artifact: Any) -> Callable[[Site], str]:
    """A line as the learner finds it: by its cell where the kernels are those of exported cells."""
    loader = getattr(artifact, "__loader__", None)
    return lambda site: str(locate_in_cell(site, loader))


def _fault(fault: Fault, where: Callable[[Site], str], actor: str) -> str:
    who = f"{actor} {fault.block}" if actor == "program" else f"{actor} {fault.block} thread {fault.thread}"
    does = f"{who} {VERBS[fault.kind]}s {fault.place} of {fault.buffer}"
    if fault.what == UNWRITTEN:
        return f"{where(fault.site)}: {does}, which nothing has written before"
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
    return f"{place}: {does}, {why}"
