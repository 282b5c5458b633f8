"""Launch lab 02's kernels and record them: results, traffic, lanes and sectors. Only traced checks have what counts."""

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
"""The branch that holds what is counted in addition to `findings`, each with a number and where it was found."""
LANES, SECTORS, EACH, REQUESTS = "idle lanes", "needless sectors", "accesses", "requests"
ELSEWHERE = "elements of other blocks"
"""Counted there: most idle lanes and most needless sectors of a warp's request, most accesses of a thread, most
requests of a block, and stores into another block's elements."""


def run_mixed(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `mixed` with a thread for each element: its result and what was counted."""
    x = arrays["x"]
    return _launch(artifact, "mixed", x.size // THREADS, {"x": x, "c": arrays["c"], "y": np.empty_like(x)})


def run_scale_rows(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `scale_rows` with a block for each row: its result and what was counted."""
    x = arrays["x"]
    return _launch(artifact, "scale_rows", len(x), {"x": x, "s": arrays["s"], "y": np.empty_like(x)})


def _launch(artifact: Any, kernel: str, grid: int, given: dict[str, np.ndarray]) -> Arrays:
    """What a launch left in `y`, and all that was counted."""
    if (parameters := parameters_of(artifact, kernel)) != list(given):
        raise InputError(f"`{kernel}` has the wrong parameters", got=", ".join(parameters), expected=", ".join(given))
    trace = locate_in_cells(record_launch(artifact, kernel, grid, THREADS, *given.values(), outputs=("y",)), artifact)
    found = {
        LANES: _find_idle(trace),
        SECTORS: find_worst(coalescing(trace), "sectors"),
        EACH: busiest_thread(trace, "global"),
        REQUESTS: busiest_block(trace, "global"),
        ELSEWHERE: _find_elsewhere(trace, given["y"].nbytes // grid),
    }
    warps = {name: {"count": number, "at": at} for name, (number, at) in found.items()}
    return {"y": given["y"], **collect_findings(trace, actor="block"), **flatten({WARPS: warps})}


def _find_elsewhere(trace: Trace, block_bytes: int) -> tuple[int, str]:
    """How many stores into `y` go to another block's elements, where each has `block_bytes`, and the first of them."""
    rows = trace.accesses
    rows = rows[np.array([buffer.name == "y" for buffer in trace.buffers])[rows["buffer"]]]
    strange = rows[rows["offset"] // block_bytes != rows["block"]]
    if not len(strange):
        return 0, ""
    first = strange[0]
    at = first["offset"] // trace.buffers[first["buffer"]].itemsize
    return len(strange), f"{trace.sites[first['site']]}: y[{at}] by block {first['block']}"


def _find_idle(trace: Trace) -> tuple[int, str]:
    """The most lanes of a warp that take no part in a request, to any memory, and which request it is."""
    rows = trace.accesses  # a branch may hide behind shared memory, and behind local
    if not len(rows):
        return 0, ""
    order, starts = group_rows(rows["request"])
    active = group_sizes(starts, len(rows))
    fewest = int(active.argmin())
    first = rows[order[starts[fewest]]]
    who = f"block {first['block']} warp {first['thread'] // WARP}"
    does = f"{VERBS[int(first['kind'])]} {trace.buffers[first['buffer']].name}"
    return WARP - int(active[fewest]), f"{trace.sites[first['site']]}: {active[fewest]} of {WARP} lanes of {who} {does}"
