"""What the microscope counted in one launch, and the sentences that it says of what is wrong.

Learners look for a line where they wrote it, so lines are counted within their cell.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.trees import Tree, flatten
from mlsys_lab.kernels.trace.cells import locate_in_cells
from mlsys_lab.kernels.trace.events import LOAD, STORE, Trace
from mlsys_lab.kernels.trace.faults import UNWRITTEN
from mlsys_lab.kernels.trace.report import report
from mlsys_lab.kernels.trace.requests import busiest_block, busiest_thread, find_worst

WRONG, COUNTS = "wrong", "counts"
"""Branches among a launch's arrays: sentences by what is wrong, counts by their kind and what they are of."""
READS, WRITES, OVER, ACCESSES, REQUESTS = "reads", "writes", "over", "accesses", "requests"
"""Kinds of counts: of an array; sectors, passes or turns too many; of one thread, and of one block, to a memory."""
SENTENCES = 2
"""How many of a kind are told; one mistake mostly shows in several places."""


def figures(trace: Trace, artifact: Any, names: Iterable[str]) -> Arrays:
    """All figures of a launch of one of the artifact's kernels; `names` are the task's for its arrays, in order."""
    trace = locate_in_cells(trace, artifact)
    found = report(trace)
    wrong = {
        "outside": join_first(one.sentence for one in found.faults if one.what != UNWRITTEN),
        "barriers": join_first([one.sentence for one in found.divergences] or _missed(trace)),
        "races": join_first(one.sentence for one in found.races if not one.between_blocks),
        "races of blocks": join_first(one.sentence for one in found.races if one.between_blocks),
        "unwritten": join_first(one.sentence for one in found.faults if one.what == UNWRITTEN),
    }
    counts: Tree = {READS: {}, WRITES: {}}
    for name, one in zip(names, found.traffic, strict=True):
        touched = trace.of(space="global", buffer=one.buffer)
        for way, other in ((READS, STORE), (WRITES, LOAD)):
            rows = touched[touched["kind"] != other]
            counts[way][name] = _count(len(rows), _by_line(trace, rows))
    counts[OVER] = {
        "sectors": _count(*find_worst(found.coalescing, "sectors")),
        "passes": _count(*find_worst(found.conflicts, "passes")),
        "turns": _count(*find_worst(found.contention, "turns")),
    }
    counts[ACCESSES] = {space: _count(*busiest_thread(trace, space)) for space in ("global", "shared")}
    counts[REQUESTS] = {space: _count(*busiest_block(trace, space)) for space in ("global", "shared")}
    return flatten({WRONG: wrong, COUNTS: counts})


def join_first(lines: Iterable[str]) -> str:
    """The first few of some lines as one text; "" where there is none."""
    return "\n".join(list(lines)[:SENTENCES])


def _count(count: int, at: str) -> dict[str, int | str]:
    """How many there are of something, and where they come about."""
    return {"count": count, "at": at}


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
