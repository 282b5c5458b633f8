"""Contention: how many turns the atomics of a warp's request take, where its lanes update the same element.

Atomics on one element happen one after the other, and on different ones side by side: a request takes as many turns as
the most of its lanes that share an element, and 1 at best. Left out: other warps, which wait for the same element too,
and that compilers and hardware may add up a warp's numbers first.
"""

from __future__ import annotations

import numpy as np

from mlsys_lab.kernels.trace.events import ATOMIC, Trace
from mlsys_lab.kernels.trace.requests import Requests, by_site
from mlsys_lab.kernels.trace.rows import group_rows, group_sizes


def contention(trace: Trace) -> tuple[Requests, ...]:
    """Requests that update memory by atomics, by place in the source, with the turns taken and the least possible."""
    rows = trace.of(kinds=(ATOMIC,))
    order, starts = group_rows(rows["request"], rows["buffer"], rows["offset"])
    rows, sharing = rows[order], group_sizes(starts, len(order))
    heads = rows[starts]
    _, firsts = group_rows(heads["request"], heads["buffer"])
    turns = np.maximum.reduceat(sharing, firsts) if len(firsts) else firsts
    return by_site(trace, rows, starts[firsts], turns, np.ones_like(turns))
