"""Contention: turns that the atomics of a warp's request take if its lanes update the same element.

Atomics on one element are serialized, those on different elements run in parallel: a request takes as many turns as the
largest number of its lanes that update one element, and 1 at best. Not modelled: other warps that wait for the same
element, and compilers and hardware that reduce within a warp first.
"""

from __future__ import annotations

import numpy as np

from mlsys_lab.kernels.trace.events import ATOMIC, Trace
from mlsys_lab.kernels.trace.requests import Requests, by_site
from mlsys_lab.kernels.trace.rows import group_rows, group_sizes


def contention(trace: Trace) -> tuple[Requests, ...]:
    """Requests that update memory by atomics, by source line, with the turns taken and the ideal number."""
    rows = trace.of(kinds=(ATOMIC,))
    order, starts = group_rows(rows["request"], rows["buffer"], rows["offset"])
    rows, sharing = rows[order], group_sizes(starts, len(order))
    heads = rows[starts]
    _, firsts = group_rows(heads["request"], heads["buffer"])
    turns = np.maximum.reduceat(sharing, firsts) if len(firsts) else firsts
    return by_site(trace, rows, starts[firsts], turns, np.ones_like(turns))
