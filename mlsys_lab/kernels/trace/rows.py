"""Helpers for a trace's rows: element of each access, bounds, grouping.

Elements are identified by array and index. Two arrays that share memory (one argument passed twice, two views of the
same shared memory) count as different ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from mlsys_lab.kernels.trace.events import Trace


def per_row(rows: np.ndarray, values: Iterable[int]) -> np.ndarray:
    """Look up, for each row, the value of its buffer among one value per buffer."""
    found: np.ndarray = np.fromiter(values, dtype=np.int64)[rows["buffer"]]
    return found


def in_bounds(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Mask of the rows within the bounds of their buffer; the gaps of a strided view count as in bounds."""
    last = per_row(rows, (buffer.size_bytes - buffer.itemsize for buffer in trace.buffers))
    within: np.ndarray = (rows["offset"] >= 0) & (rows["offset"] <= last)
    return within


def element_ids(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """An id for the element of each row, equal for two rows if and only if they access the same memory.

    Each block has its own shared arrays and each thread its own local ones. The rows must be in bounds.
    """
    blocks = int(trace.accesses["block"].max(initial=0)) + 1
    threads = int(trace.accesses["thread"].max(initial=0)) + 1
    copies = {"global": 1, "shared": blocks, "local": blocks * threads}
    lengths = [-(-buffer.size_bytes // buffer.itemsize) for buffer in trace.buffers]
    sizes = [n * copies[buffer.space] for n, buffer in zip(lengths, trace.buffers, strict=True)]
    copy = rows["block"] * per_row(rows, (buffer.space != "global" for buffer in trace.buffers))
    local = per_row(rows, (buffer.space == "local" for buffer in trace.buffers)) == 1
    copy = np.where(local, copy * threads + rows["thread"], copy)
    index = rows["offset"] // per_row(rows, (buffer.itemsize for buffer in trace.buffers))
    found: np.ndarray = per_row(rows, np.cumsum([0, *sizes])) + copy * per_row(rows, lengths) + index
    return found


def group_rows(*keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort rows by keys, the first key most significant; return the order and the start of each group of equal keys.

    The sort is stable.

    >>> order, starts = group_rows(np.array([7, 3, 7]))
    >>> order.tolist(), starts.tolist()
    ([1, 0, 2], [0, 1])
    """
    one = _one_key(keys)
    if one is not None:
        keys = (one,)
        in_order = bool((one[1:] >= one[:-1]).all())
        order = np.arange(len(one)) if in_order else np.argsort(one, kind="stable")
    else:
        order = np.lexsort(keys[::-1])
    new = np.zeros(len(order), dtype=bool)
    new[:1] = True
    for key in keys:
        ordered = key[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    return order, np.flatnonzero(new)


def group_sizes(starts: np.ndarray, rows: int) -> np.ndarray:
    """Number of rows in each group, from the groups' starts and the total number of rows."""
    return np.diff(starts, append=rows)


def _one_key(keys: tuple[np.ndarray, ...]) -> np.ndarray | None:
    """Combine the keys into one integer per row, which sorts several times faster; None if it would overflow."""
    if not len(keys[0]):
        return keys[0]
    lows, highs = ([int(of(key)) for key in keys] for of in (np.min, np.max))
    if math.prod(high - low + 1 for low, high in zip(lows, highs, strict=True)) >= 2**63:
        return None
    one = np.zeros(len(keys[0]), dtype=np.int64)
    for key, low, high in zip(keys, lows, highs, strict=True):
        one *= high - low + 1
        one += key
        one -= low
    return one
