"""What the microscope counted in one launch, as arrays: figures as whole numbers, sentences as the bytes of their text.

Learners look for a line where they wrote it, so lines are counted within their cell.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from mlsys_lab.checks.spec import Arrays
from mlsys_lab.kernels.trace.events import LOAD, STORE, Trace
from mlsys_lab.kernels.trace.faults import UNWRITTEN
from mlsys_lab.kernels.trace.findings import as_text
from mlsys_lab.kernels.trace.places import locate_in_cells
from mlsys_lab.kernels.trace.report import report
from mlsys_lab.kernels.trace.requests import Requests, busiest_thread, find_worst

SENTENCES = 2
"""How many of a kind are told; one mistake mostly shows in several places."""


def figures(trace: Trace, artifact: Any, names: Iterable[str]) -> Arrays:
    """All figures of a launch of one of the artifact's kernels; `names` are the task's for its arrays, in order."""
    trace = locate_in_cells(trace, artifact)
    found = report(trace)
    got = {
        "outside": text(one.sentence for one in found.faults if one.what != UNWRITTEN),
        "barriers": text([one.sentence for one in found.divergences] or _missed(trace)),
        "races": text(one.sentence for one in found.races if not one.between_blocks),
        "races of blocks": text(one.sentence for one in found.races if one.between_blocks),
        "unwritten": text(one.sentence for one in found.faults if one.what == UNWRITTEN),
    }
    for name, one in zip(names, found.traffic, strict=True):
        touched = trace.of(space="global", buffer=one.buffer)
        for does, other in (("reads", STORE), ("writes", LOAD)):
            rows = touched[touched["kind"] != other]
            got[f"{does} of {name}"] = np.array(len(rows))
            got[f"{does} of {name} at"] = text([_by_line(trace, rows)])
    got |= _spread("sectors", found.coalescing) | _spread("passes", found.conflicts)
    return got | _busiest(trace)


def text(lines: Iterable[str]) -> np.ndarray:
    """The first few lines, as the bytes of their letters; nothing where there is none."""
    return as_text("\n".join(list(lines)[:SENTENCES]))


def _missed(trace: Trace) -> list[str]:
    """Barriers that threads of a block went past without a trace."""
    arrivals = trace.arrivals
    said: dict[int, str] = {}
    _, first = np.unique(arrivals[["block", "phase", "site", "thread"]], return_index=True)
    turns, counts = np.unique(arrivals[first][["site", "block", "phase"]], return_counts=True)
    for turn, count in zip(turns, counts.tolist(), strict=True):
        if count < trace.threads:
            who = f"{count} of {trace.threads} threads of block {turn['block']} come to this barrier"
            said.setdefault(int(turn["site"]), f"{trace.sites[turn['site']]}: {who}")
    return list(said.values())


def _by_line(trace: Trace, rows: np.ndarray) -> str:
    """How many of the rows each line of source makes."""
    numbers, counts = np.unique(rows["site"], return_counts=True)
    return ", ".join(f"{trace.sites[n]} {count:,} times" for n, count in zip(numbers, counts.tolist(), strict=True))


def _spread(unit: str, places: tuple[Requests, ...]) -> Arrays:
    """By how much the worst request of a warp exceeds the least, and where that is."""
    over, said = find_worst(places, unit)
    return {f"{unit} over": np.array(over), f"{unit} at": text([said])}


def _busiest(trace: Trace) -> Arrays:
    """What the busiest thread asks of each memory, and the requests of the busiest block to shared memory."""
    got: Arrays = {}
    for space in ("global", "shared"):
        count, who = busiest_thread(trace, space)
        got[f"{space} accesses of a thread"] = np.array(count)
        got[f"{space} accesses of a thread at"] = text([who])
    rows = trace.of(space="shared")
    _, first = np.unique(rows["request"], return_index=True)
    got["shared requests of a block"] = np.array(int(np.bincount(rows["block"][first], minlength=1).max()))
    got["shared requests of a block at"] = text([])
    return got
