"""Calls of tasks 6 and 7: a launch of a kernel, recorded: its result, its traffic, its lanes and its sectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_lab.checks.gpu_model.calls.common import text
from mlsys_lab.checks.spec import Arrays
from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.events import WARP, Site, Trace
from mlsys_lab.kernels.trace.findings import findings
from mlsys_lab.kernels.trace.launches import parameters_of, recorded
from mlsys_lab.kernels.trace.places import in_cell
from mlsys_lab.kernels.trace.requests import VERBS
from mlsys_lab.kernels.trace.rows import counted, grouped
from mlsys_lab.kernels.trace.sectors import coalescing

THREADS = 128
"""Of a block."""
LANES, SECTORS, SHARE = "lanes idle", "sectors over", "accesses of a thread"
"""What is counted beside `findings`: most idle lanes and most needless sectors of a request, accesses of a thread."""


def mixed(artifact: Any, arrays: Arrays) -> Arrays:
    """One launch with a thread for each element."""
    x = arrays["x"]
    return _launched(artifact, "mixed", x.size // THREADS, {"x": x, "c": arrays["c"], "y": np.empty_like(x)})


def scale_rows(artifact: Any, arrays: Arrays) -> Arrays:
    """One launch with a block for each row."""
    x = arrays["x"]
    return _launched(artifact, "scale_rows", len(x), {"x": x, "s": arrays["s"], "y": np.empty_like(x)})


def _launched(artifact: Any, kernel: str, grid: int, given: dict[str, np.ndarray]) -> Arrays:
    """What a launch left in `y`, and all that was counted."""
    if (parameters := parameters_of(artifact, kernel)) != list(given):
        raise InputError(f"`{kernel}` has the wrong parameters", got=", ".join(parameters), expected=", ".join(given))
    trace = recorded(artifact, kernel, grid, THREADS, *given.values(), outputs=("y",))
    return {"y": given["y"], **findings(trace, artifact, actor="block"), **_warps(trace, artifact)}


def _warps(trace: Trace, artifact: Any) -> Arrays:
    """The request with most idle lanes, that with most needless sectors, and the busiest thread."""
    loader = getattr(artifact, "__loader__", None)

    def where(site: Site) -> str:
        return str(in_cell(site, loader))

    rows = trace.of(space="global")
    found = {LANES: (0, ""), SECTORS: (0, ""), SHARE: (0, "")}
    if len(rows):
        every = trace.accesses  # a branch may hide behind shared memory, and behind local
        order, starts = grouped(every["request"])
        at_work = counted(starts, len(every))
        fewest = int(at_work.argmin())
        first = every[order[starts[fewest]]]
        who = f"block {first['block']} warp {first['thread'] // WARP}"
        does = VERBS[int(first["kind"])]
        array = trace.buffers[first["buffer"]].name
        idle = f"{where(trace.sites[first['site']])}: {at_work[fewest]} of 32 lanes of {who} {does} {array}"
        worst = max(coalescing(trace), key=lambda one: one.worst.taken - one.worst.least)
        request = worst.worst
        spread = (
            f"{where(worst.site)}: {request.lanes} lanes of {request.who} {VERBS[worst.kind]} {worst.buffer} in "
            f"{request.taken} sectors where {request.least} would do"
        )
        each = np.bincount(rows["block"].astype(np.int64) * trace.threads + rows["thread"])
        block, thread = divmod(int(each.argmax()), trace.threads)
        found[LANES] = (WARP - int(at_work[fewest]), idle)
        found[SECTORS] = (request.taken - request.least, spread)
        found[SHARE] = (int(each.max()), f"block {block} thread {thread}")
    counts = {name: np.array(count) for name, (count, _) in found.items()}
    return counts | {f"{name} at": text(said) for name, (_, said) in found.items()}
