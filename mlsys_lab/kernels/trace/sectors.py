"""Coalescing: how many 32-byte sectors of global memory a warp's requests touch, and how few would hold what they ask.

A warp's request is served with as many transactions of 32 bytes as its lanes touch (CUDA C++ Best Practices Guide,
"Coalesced Access to Global Memory", compute capability 6.0 and above); lanes that ask for the same bytes share them.
Caches are left out: a sector that two requests touch counts twice.
"""

from __future__ import annotations

import numpy as np

from mlsys_lab.kernels.trace.events import Trace
from mlsys_lab.kernels.trace.requests import Requests, addresses, by_site
from mlsys_lab.kernels.trace.rows import grouped, of_buffers

SECTOR_BYTES = 32


def coalescing(trace: Trace) -> tuple[Requests, ...]:
    """Requests to global memory by place in the source, with the sectors taken and the least possible."""
    return by_site(trace, *sectors(trace))


def sectors(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of global memory ordered by request and array, where each request begins, its sectors, and the least."""
    rows = trace.of(space="global")
    address = addresses(trace, rows)
    order, starts = grouped(rows["request"], rows["buffer"], address)
    rows, address = rows[order], address[order]
    head = np.zeros(len(rows), dtype=bool)  # of a request to one array
    head[:1] = True
    head[1:] = (np.diff(rows["request"]) != 0) | (np.diff(rows["buffer"]) != 0)
    starts = np.flatnonzero(head)
    end = address + of_buffers(rows, (buffer.itemsize for buffer in trace.buffers))
    taken = _covered(address // SECTOR_BYTES, -(-end // SECTOR_BYTES), head, starts)
    asked_bytes = _covered(address, end, head, starts)
    return rows, starts, taken, -(-asked_bytes // SECTOR_BYTES)


def _covered(first: np.ndarray, end: np.ndarray, head: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """For each group, the length of the union of the ranges first:end, both of which ascend within a group."""
    before = np.concatenate([first[:1], end[:-1]])
    new = end - np.where(head, first, np.clip(before, first, end))
    return np.add.reduceat(new, starts) if len(starts) else new
