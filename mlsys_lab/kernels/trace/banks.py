"""Bank conflicts: how many passes a warp's request to shared memory takes, and how few it could take.

Shared memory has 32 banks; successive words of 4 bytes lie in successive banks, and in one pass each bank gives or
takes one word. Lanes that read the same word share it (CUDA C++ Programming Guide, compute capability 5.x, "Shared
Memory"; later ones follow it). The guide says so of accesses of up to 4 bytes. Wider ones are served in parts, each of
which can have conflicts of its own: 8 bytes by half-warps, 16 bytes by quarter-warps (the guide's older section on 2.x,
and what has been measured since). Left out: parts whose lanes share words are at times served together.

Two lanes that write one word are no conflict, but a race (`races`).
"""

from __future__ import annotations

import numpy as np

from mlsys_lab.kernels.trace.events import WARP, Trace
from mlsys_lab.kernels.trace.requests import Requests, addresses, by_site
from mlsys_lab.kernels.trace.rows import counted, grouped, of_buffers

BANKS = 32
WORD_BYTES = 4


def conflicts(trace: Trace) -> tuple[Requests, ...]:
    """Requests to shared memory by place in the source, with the passes taken and the least possible."""
    return by_site(trace, *passes(trace))


def passes(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of shared memory ordered by request, where each request begins, its passes, and the least for its words."""
    rows = trace.of(space="shared")
    order, starts = grouped(rows["request"])
    rows = rows[order]
    size = of_buffers(rows, (buffer.itemsize for buffer in trace.buffers))
    request = np.repeat(np.arange(len(starts)), counted(starts, len(rows)))
    part = request * WARP + rows["thread"] % WARP * np.maximum(size // WORD_BYTES, 1) // WARP
    words = -(-size // WORD_BYTES)  # that a lane touches; from here on a row is one of them
    lane = np.repeat(np.arange(len(rows)), words)
    nth = np.arange(len(lane)) - np.repeat(np.cumsum(words) - words, words)
    word = addresses(trace, rows)[lane] // WORD_BYTES + nth
    bank, part = word % BANKS, part[lane]
    order, different = grouped(part, bank, word)
    part, bank = part[order][different], bank[order][different]
    _, banks = grouped(part, bank)
    deep = counted(banks, len(part))  # different words of one bank
    _, parts = grouped(part[banks])
    if not len(parts):
        return rows, starts, parts, parts
    pass_of_part = np.maximum.reduceat(deep, parts)
    of_request = part[banks][parts] // WARP
    taken = np.bincount(of_request, weights=pass_of_part).astype(np.int64)
    return rows, starts, taken, np.bincount(of_request)
