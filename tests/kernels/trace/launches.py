"""Traces made by hand: what a few lanes did, written as one line a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlsys_lab.kernels.trace.events import ACCESS, ARRIVAL, LOAD, NO_LOCK, WARP, Buffer, Site, Trace


def array(
    name: str,
    shape: int | tuple[int, ...],
    *,
    itemsize: int = 4,
    initialized: bool = True,
    space: str = "global",
    start: int = 0,
) -> Buffer:
    """A contiguous array."""
    shape = (shape,) if isinstance(shape, int) else shape
    strides = tuple(itemsize * int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    return Buffer(name, space, shape, itemsize, strides, initialized, start)  # type: ignore[arg-type]


def shared(name: str, shape: int | tuple[int, ...], *, itemsize: int = 4, start: int = 0) -> Buffer:
    """A block's array, which nothing has written before the launch."""
    return array(name, shape, itemsize=itemsize, initialized=False, space="shared", start=start)


@dataclass(frozen=True)
class Ask:
    """One request: which element each of the threads touches."""

    buffer: str
    elements: Mapping[int, int] | Sequence[int]  # by thread, or of threads 0, 1, 2 …
    kind: int = LOAD
    line: int = 1
    block: int = 0
    phase: int = 0
    sync: int = 0
    lock: int = 0
    value: int = 0
    role: int = NO_LOCK


def trace(
    asks: Iterable[Ask],
    *,
    buffers: Sequence[Buffer],
    arrivals: Iterable[tuple[int, int, int, int]] = (),
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (WARP, 1, 1),
    unit_names: tuple[str, str] = ("block", "thread"),
) -> Trace:
    """A launch that made these requests, one after the other; arrivals are (line, block, thread, phase)."""
    asks, arrivals = list(asks), list(arrivals)
    lines = sorted({ask.line for ask in asks} | {line for line, *_ in arrivals})
    names = [buffer.name for buffer in buffers]
    rows = []
    for request, ask in enumerate(asks):
        buffer = names.index(ask.buffer)
        elements = ask.elements if isinstance(ask.elements, Mapping) else dict(enumerate(ask.elements))
        for thread, element in elements.items():
            offset = element * buffers[buffer].itemsize
            order = (ask.block, thread, ask.phase, ask.sync)
            more = (offset, ask.lock, ask.value, ask.role)
            rows.append((request, ask.kind, buffer, lines.index(ask.line), *order, *more))
    reached = [(lines.index(line), *rest) for line, *rest in arrivals]
    return Trace(
        kernel="by_hand",
        grid=grid,
        block=block,
        buffers=tuple(buffers),
        sites=tuple(Site("kernel.py", line, f"source of line {line}") for line in lines),
        accesses=np.array(rows, dtype=ACCESS),
        arrivals=np.array(reached, dtype=ARRIVAL),
        unit_names=unit_names,
    )
