"""Coalescing: 32-byte sectors of global memory that a warp's requests touch, and the ideal number.

A warp's request takes one 32-byte transaction for each sector that its lanes touch (CUDA C++ Best Practices Guide,
"Coalesced Access to Global Memory", compute capability 6.0 and above); lanes that access the same bytes share them.
Caches are ignored: a sector that two requests touch counts twice.

The ideal for a request is the number of sectors that its bytes would fill. If lanes have diverged, it is the number
that the active lanes would touch at their positions in the warp: gaps left by inactive lanes are not scattering.
"""

from __future__ import annotations

import numpy as np

from mlsys_lab.kernels.trace.events import WARP, Trace
from mlsys_lab.kernels.trace.requests import Requests, addresses, by_site
from mlsys_lab.kernels.trace.rows import group_rows, group_sizes, per_row

SECTOR_BYTES = 32


def coalescing(trace: Trace) -> tuple[Requests, ...]:
    """Requests to global memory by source line, with the sectors taken and the ideal number."""
    return by_site(trace, *sectors(trace))


def sectors(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of global memory ordered by request and array; each request's start, sectors, and ideal sectors."""
    rows = trace.of(space="global")
    address = addresses(trace, rows)
    order, starts = group_rows(rows["request"], rows["buffer"], address)
    rows, address = rows[order], address[order]
    head = np.zeros(len(rows), dtype=bool)  # of a request to one array
    head[:1] = True
    head[1:] = (np.diff(rows["request"]) != 0) | (np.diff(rows["buffer"]) != 0)
    starts = np.flatnonzero(head)
    itemsize = per_row(rows, (buffer.itemsize for buffer in trace.buffers))
    end = address + itemsize
    taken = _covered_bytes(address // SECTOR_BYTES, -(-end // SECTOR_BYTES), head, starts)
    asked_bytes = _covered_bytes(address, end, head, starts)
    lanes = group_sizes(starts, len(rows))
    in_place = _count_different(np.repeat(starts, lanes), rows["thread"] % WARP * itemsize // SECTOR_BYTES)
    each_its_own = asked_bytes == lanes * itemsize[starts]
    least = -(-asked_bytes // SECTOR_BYTES)
    return rows, starts, taken, np.where(each_its_own, np.maximum(least, np.minimum(in_place, taken)), least)


def _count_different(group: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Number of distinct values in each group, groups in ascending order."""
    order, different = group_rows(group, value)
    _, starts = group_rows(group[order[different]])
    return group_sizes(starts, len(different))


def _covered_bytes(first: np.ndarray, end: np.ndarray, head: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """For each group, the length of the union of the ranges first:end, both of which ascend within a group."""
    before = np.concatenate([first[:1], end[:-1]])
    new = end - np.where(head, first, np.clip(before, first, end))
    return np.add.reduceat(new, starts) if len(starts) else new
