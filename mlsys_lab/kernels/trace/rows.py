"""Questions about a trace's rows: which element a lane touched, whether it exists, which rows go together.

Elements are told apart by array and index. Two arrays that share memory (one argument passed twice, two views of the
same shared memory) count as different ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from mlsys_lab.kernels.trace.events import Trace


def of_buffers(rows: np.ndarray, values: Iterable[int]) -> np.ndarray:
    """For each row the value of the buffer that it touches, from one value for each of the trace's buffers."""
    found: np.ndarray = np.fromiter(values, dtype=np.int64)[rows["buffer"]]
    return found


def inside(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Mask of the rows that touch bytes of their buffer; the gaps of a strided view count as its bytes."""
    last = of_buffers(rows, (buffer.size_bytes - buffer.itemsize for buffer in trace.buffers))
    within: np.ndarray = (rows["offset"] >= 0) & (rows["offset"] <= last)
    return within


def cells(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """A number for the element of each row, equal for two rows if and only if they touch the same memory.

    Every block has shared arrays of its own and every thread local ones. The rows must lie inside of their buffers.
    """
    blocks = int(trace.accesses["block"].max(initial=0)) + 1
    threads = int(trace.accesses["thread"].max(initial=0)) + 1
    copies = {"global": 1, "shared": blocks, "local": blocks * threads}
    lengths = [-(-buffer.size_bytes // buffer.itemsize) for buffer in trace.buffers]
    sizes = [n * copies[buffer.space] for n, buffer in zip(lengths, trace.buffers, strict=True)]
    copy = rows["block"] * of_buffers(rows, (buffer.space != "global" for buffer in trace.buffers))
    local = of_buffers(rows, (buffer.space == "local" for buffer in trace.buffers)) == 1
    copy = np.where(local, copy * threads + rows["thread"], copy)
    index = rows["offset"] // of_buffers(rows, (buffer.itemsize for buffer in trace.buffers))
    found: np.ndarray = of_buffers(rows, np.cumsum([0, *sizes])) + copy * of_buffers(rows, lengths) + index
    return found


def grouped(*keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Order in which rows of equal keys stand together, the first key foremost, and where each group begins.

    Within a group rows stand as they stood before.

    >>> order, starts = grouped(np.array([7, 3, 7]))
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


def counted(starts: np.ndarray, rows: int) -> np.ndarray:
    """Number of rows in each group, from where the groups begin and the number of all rows."""
    return np.diff(starts, append=rows)


def _one_key(keys: tuple[np.ndarray, ...]) -> np.ndarray | None:
    """One integer a row that orders rows as the keys do and sorts several times sooner; None where it does not fit."""
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
