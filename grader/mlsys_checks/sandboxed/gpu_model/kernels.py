"""Calls of tasks 6 and 7: a launch of a kernel, recorded: its result, its traffic, its lanes and its sectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_checks.sandboxed.findings import collect_findings
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.trees import flatten
from mlsys_lab.errors import InputError
from mlsys_lab.kernels.numba_record import parameters_of, record_launch
from mlsys_lab.kernels.trace.cells import locate_in_cells
from mlsys_lab.kernels.trace.events import WARP, Trace
from mlsys_lab.kernels.trace.requests import VERBS, busiest_block, busiest_thread, find_worst
from mlsys_lab.kernels.trace.rows import group_rows, group_sizes
from mlsys_lab.kernels.trace.sectors import coalescing

THREADS = 128
"""Threads of a block."""
WARPS = "warps"
"""The branch that holds what is counted beside `findings`, each with how many and where."""
LANES, SECTORS, SHARE, REQUESTS = "idle lanes", "needless sectors", "accesses", "requests"
ELSEWHERE = "elements of other blocks"
"""Counted there: most idle lanes and most needless sectors of a warp's request, most accesses of a thread, most
requests of a block, and stores into another block's share of the result."""


def mixed(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `mixed` with a thread for each element: its result and what was counted."""
    x = arrays["x"]
    return _launched(artifact, "mixed", x.size // THREADS, {"x": x, "c": arrays["c"], "y": np.empty_like(x)})


def scale_rows(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `scale_rows` with a block for each row: its result and what was counted."""
    x = arrays["x"]
    return _launched(artifact, "scale_rows", len(x), {"x": x, "s": arrays["s"], "y": np.empty_like(x)})


def _launched(artifact: Any, kernel: str, grid: int, given: dict[str, np.ndarray]) -> Arrays:
    """What a launch left in `y`, and all that was counted."""
    if (parameters := parameters_of(artifact, kernel)) != list(given):
        raise InputError(f"`{kernel}` has the wrong parameters", got=", ".join(parameters), expected=", ".join(given))
    trace = locate_in_cells(record_launch(artifact, kernel, grid, THREADS, *given.values(), outputs=("y",)), artifact)
    found = {
        LANES: _idle(trace),
        SECTORS: find_worst(coalescing(trace), "sectors"),
        SHARE: busiest_thread(trace, "global"),
        REQUESTS: busiest_block(trace, "global"),
        ELSEWHERE: _elsewhere(trace, given["y"].nbytes // grid),
    }
    warps = {name: {"count": count, "at": at} for name, (count, at) in found.items()}
    return {"y": given["y"], **collect_findings(trace, actor="block"), **flatten({WARPS: warps})}


def _elsewhere(trace: Trace, share_bytes: int) -> tuple[int, str]:
    """How many stores into `y` go to another block's share of it, where each has as many bytes, and the first."""
    rows = trace.accesses
    rows = rows[np.array([buffer.name == "y" for buffer in trace.buffers])[rows["buffer"]]]
    strange = rows[rows["offset"] // share_bytes != rows["block"]]
    if not len(strange):
        return 0, ""
    first = strange[0]
    at = first["offset"] // trace.buffers[first["buffer"]].itemsize
    return len(strange), f"{trace.sites[first['site']]}: y[{at}] by block {first['block']}"


def _idle(trace: Trace) -> tuple[int, str]:
    """How many lanes of a warp take no part in a request at most, to whatever memory, and which request it is."""
    rows = trace.accesses  # a branch may hide behind shared memory, and behind local
    if not len(rows):
        return 0, ""
    order, starts = group_rows(rows["request"])
    at_work = group_sizes(starts, len(rows))
    fewest = int(at_work.argmin())
    first = rows[order[starts[fewest]]]
    who = f"block {first['block']} warp {first['thread'] // WARP}"
    does = f"{VERBS[int(first['kind'])]} {trace.buffers[first['buffer']].name}"
    said = f"{trace.sites[first['site']]}: {at_work[fewest]} of {WARP} lanes of {who} {does}"
    return WARP - int(at_work[fewest]), said
