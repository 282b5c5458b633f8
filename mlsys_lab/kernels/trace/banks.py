"""Bank conflicts: passes that a warp's request to shared memory takes, and the ideal number.

Shared memory has 32 banks; successive words of 4 bytes lie in successive banks, and in one pass each bank serves
one word. Lanes that read the same word share it (CUDA C++ Programming Guide, compute capability 5.x, "Shared
Memory"; later ones follow it). The guide says so of accesses of up to 4 bytes. Wider ones are served in parts, each of
which can have conflicts of its own: 8 bytes by half-warps, 16 bytes by quarter-warps (the guide's older section on 2.x,
and what has been measured since). Not modelled: parts whose lanes share words are sometimes served together.

Two lanes that write one word are no conflict, but a race (`races`).
"""

from __future__ import annotations

import numpy as np

from mlsys_lab.kernels.trace.events import WARP, Trace
from mlsys_lab.kernels.trace.requests import Requests, addresses, by_site
from mlsys_lab.kernels.trace.rows import group_rows, group_sizes, per_row

BANKS = 32
WORD_BYTES = 4


def conflicts(trace: Trace) -> tuple[Requests, ...]:
    """Requests to shared memory by source line, with the passes taken and the ideal number."""
    return by_site(trace, *passes(trace))


def passes(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of shared memory ordered by request, the start of each request, its passes, and the ideal number."""
    rows = trace.of(space="shared")
    order, starts = group_rows(rows["request"])
    rows = rows[order]
    size = per_row(rows, (buffer.itemsize for buffer in trace.buffers))
    request = np.repeat(np.arange(len(starts)), group_sizes(starts, len(rows)))
    part = request * WARP + rows["thread"] % WARP * np.maximum(size // WORD_BYTES, 1) // WARP
    words = -(-size // WORD_BYTES)  # that a lane touches; from here on a row is one of them
    lane = np.repeat(np.arange(len(rows)), words)
    nth = np.arange(len(lane)) - np.repeat(np.cumsum(words) - words, words)
    word = addresses(trace, rows)[lane] // WORD_BYTES + nth
    bank, part = word % BANKS, part[lane]
    order, different = group_rows(part, bank, word)
    part, bank = part[order][different], bank[order][different]
    _, banks = group_rows(part, bank)
    deep = group_sizes(banks, len(part))  # different words of one bank
    _, parts = group_rows(part[banks])
    if not len(parts):
        return rows, starts, parts, parts
    pass_of_part = np.maximum.reduceat(deep, parts)
    of_request = part[banks][parts] // WARP
    taken = np.bincount(of_request, weights=pass_of_part).astype(np.int64)
    return rows, starts, taken, np.bincount(of_request)
